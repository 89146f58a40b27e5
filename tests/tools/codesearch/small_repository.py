"""A small repository with what makes a Python index go wrong, and the ways to ask it."""

from __future__ import annotations

from pathlib import Path

from slipstream.tools.codesearch import CodeSearch, Store, host_folder

FILES: dict[str, str | bytes] = {
    "shop/__init__.py": "from .models import Order as Order, Base\nfrom .rates import *\n",
    "shop/models.py": '''"""Orders."""
import dataclasses
from dataclasses import dataclass
from typing import overload

from . import rates
from .rates import tax as vat


class Base:
    """What everything derives from."""

    kind = "base"

    def save(self):
        return self.validate()

    def validate(self):
        return True


@dataclass(frozen=True)
class Order(Base):
    """An order of a customer."""

    number: int
    lines: list = dataclasses.field(
        default_factory=list,
    )

    @property
    def total(self):
        return vat(sum(self.lines)) + rates.tax(1)

    @total.setter
    def total(self, value):
        self.cached = value
        setattr(self, "forced", True)

    @overload
    def find(self, key: int) -> int: ...
    @overload
    def find(self, key: str) -> str: ...
    def find(self, key):
        def inner():
            class Local:
                def deep(self):
                    return key

            return Local

        return inner()

    async def fetch(self):
        return await self.save()


if True:

    def chosen():
        return 1

else:

    def chosen():
        return 2


try:
    import fast
except ImportError:
    fast = None
''',
    "shop/rates.py": "RATE, OLD = 0.2, 0.1\n\n\ndef tax(amount):\n    return amount * RATE\n",
    "shop/typed.pyi": "def typed(x: int) -> str: ...\n",
    "plugins/extra/tool.py": """from shop import Order


def run():
    order = Order(1)
    order.save()
    return order.find(2)
""",
    "tests/test_models.py": "from shop.models import Order\n\n\ndef test_order():\n    assert Order(1).save()\n",
    "README.md": "# Shop\n\nRun the plugin with `run`.\n",
}


def written(folder: Path, files: dict[str, str | bytes]) -> Path:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def opened(folder: Path, store: Store) -> CodeSearch:
    return CodeSearch(host_folder(folder), store)
