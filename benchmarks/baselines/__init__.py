"""The history this project starts from, as two small relays: FastAPI, pydantic models and an aiohttp session."""
