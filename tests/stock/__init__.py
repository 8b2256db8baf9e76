"""A stand-in of a stock `trtllm-serve` worker: what it says on the wire, on a real socket, and no model.

Written from docs/wire.md and the public behaviour of trtllm-serve alone; it imports nothing of ours, so that a mistake in our
schemas cannot hide in it.
"""

from tests.stock.behaviour import Behaviour, Ending, Refusal
from tests.stock.disagg import Ledger
from tests.stock.recording import Recorded
from tests.stock.server import StockWorker

__all__ = ["Behaviour", "Ending", "Ledger", "Recorded", "Refusal", "StockWorker"]
