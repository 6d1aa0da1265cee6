"""What a person types and sees; tyro and rich live here and nowhere else."""
