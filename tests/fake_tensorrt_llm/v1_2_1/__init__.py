"""TensorRT-LLM 1.2.1 as a stand-in: `api` has its signatures, the other folders its module names."""
