"""`mx.profiler`: operators are counted and timed, and written for Chrome's viewer."""

from __future__ import annotations

import json
from pathlib import Path

from weft.mx import nd, profiler


def test_operators_between_start_and_stop_are_timed(tmp_path: Path) -> None:
    nd.waitall()
    profiler.dumps(reset=True)
    profiler.set_config(profile_all=True, filename=str(tmp_path / "p.json"))
    profiler.start()
    x = nd.ones((2, 2))
    y = nd.dot(x, x)
    y.wait_to_read()
    profiler.stop()
    _ = nd.exp(x)
    nd.waitall()
    with profiler.Domain("d").new_task("by hand"):
        pass
    told = json.loads(profiler.dumps(format="json"))["Time"]
    assert told["dot"]["Count"] == 1
    assert "exp" not in told
    assert "by hand" in profiler.dumps(sort_by="count")
    profiler.dump()
    rows = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    assert {"dot", "by hand"} <= {row["name"] for row in rows}
    assert "dot" not in profiler.dumps(reset=True).replace("dot", "", 1)
    assert "dot" not in profiler.dumps()
