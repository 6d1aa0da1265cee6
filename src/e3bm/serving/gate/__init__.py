"""What is refused or ended before any work is done: connections, tokens, hosts, sizes, forms."""
