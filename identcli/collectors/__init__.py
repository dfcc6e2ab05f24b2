"""What is measured around an optimizer step, in any training loop."""

from identcli.collectors.hook import Collector, attach
from identcli.collectors.when import every

__all__ = ["Collector", "attach", "every"]
