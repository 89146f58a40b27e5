import asyncio

import pytest

from slipstream.simulate.clock import NothingWillHappen, run_virtual


def test_a_thousand_seconds_pass_at_once_and_in_order() -> None:
    async def main() -> list[tuple[float, str]]:
        seen: list[tuple[float, str]] = []

        async def wait(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            seen.append((asyncio.get_running_loop().time(), name))

        await asyncio.gather(wait(1000, "late"), wait(10, "early"), wait(500.5, "middle"))
        return seen

    assert run_virtual(main()) == [(10, "early"), (500.5, "middle"), (1000, "late")]


def test_timeouts_are_virtual_too() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 3600


def test_waiting_for_what_never_comes_is_an_error_and_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingWillHappen):
        run_virtual(main())
