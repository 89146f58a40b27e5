"""The benchmark of the data path, on a small load."""

from slipstream.bench.harness.datapath import DatapathLoad, run


def test_what_is_encoded_stays_flat_and_everything_is_merged() -> None:
    told = run(DatapathLoad(turns=40, rollouts=16, tokens=1000, merged_turns=10))
    assert told["turns"] == 40
    assert told["samples"] == 1
    assert told["encoded_first"] == told["encoded_last"]
    assert isinstance(told["encoded_total"], int) and isinstance(told["encoded_total_if_rendered_whole"], int)
    assert told["encoded_total"] * 5 < told["encoded_total_if_rendered_whole"]
    assert (told["rollouts"], told["tokens"]) == (16, 16_000)
    assert told["packs"] == 4
    for name in ("merge_s", "pack_s", "rss_mb", "encode_s"):
        figure = told[name]
        assert isinstance(figure, float) and figure > 0
