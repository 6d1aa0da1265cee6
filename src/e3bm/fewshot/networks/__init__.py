"""Which network looks at photos, and what runs it: onnxruntime for packaged ones, torch for all others."""
