"""TensorRT-LLM main of mid 2026 as a stand-in: `api` has its signatures, the other folders its module names."""
