"""`mx.viz.plot_network` gives a picture as text, with or without Graphviz's package; `mx.libinfo` finds no library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from weft.mx import libinfo, sym, viz


@pytest.fixture(autouse=True)
def without_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)


def network() -> Any:
    net = sym.Convolution(sym.var("data"), num_filter=3, kernel=(3, 3), stride=(2, 2), name="conv")
    net = sym.BatchNorm(sym.Activation(net, act_type="relu", name="act"), name="bn")
    net = sym.Pooling(net, kernel=(2, 2), pool_type="avg", name="pool")
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=4, name="fc"), name="softmax")


def test_a_picture_has_a_box_for_each_operator_and_the_sizes_of_what_goes_between_them() -> None:
    source = viz.plot_network(network(), shape={"data": (2, 1, 9, 9)}).source
    for label in (r"Convolution\n3x3/2x2, 3", r"Activation\nrelu", r"Pooling\navg, 2x2/1", r"FullyConnected\n4"):
        assert f'label="{label}"' in source
    assert '"conv" -> "data" [label="1x9x9"' in source
    assert '"fc" -> "pool" [label="3x3x3"' in source
    assert "conv_weight" not in source
    assert '"softmax_label" [label="softmax_label" fillcolor="#8dd3c7" shape="oval"' in source


def test_weights_are_drawn_where_they_are_asked_for_and_looks_can_be_changed() -> None:
    shown = viz.plot_network(network(), 'my "net"', hide_weights=False, node_attrs={"shape": "oval", "color": "red"})
    assert '"conv" -> "conv_weight"' in shown.source
    assert 'shape="oval" fixedsize="true" width="1.3" height="0.8034" style="filled" color="red"' in shown.source
    assert shown.source.startswith('digraph "my \\"net\\"" {')
    with pytest.raises(TypeError, match="must be a Symbol"):
        viz.plot_network(3)


def test_without_the_package_the_text_is_kept_and_drawing_says_what_draws_it(tmp_path: Path) -> None:
    picture = viz.plot_network(network(), "net", save_format="png")
    with pytest.raises(ImportError, match=r"requires the package graphviz.*dot -Tpng -O .*net\.gv"):
        picture.render(directory=str(tmp_path))
    assert (tmp_path / "net.gv").read_text() == str(picture)


def test_with_the_package_it_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    class Package:
        @staticmethod
        def Source(source: str, **given: str) -> Any:  # noqa: N802  # its name
            return source, given

    monkeypatch.setitem(sys.modules, "graphviz", Package)
    source, given = viz.plot_network(network(), save_format="svg")
    assert "Convolution" in source
    assert given == {"filename": "plot.gv", "format": "svg"}


def test_no_library_of_mxnets_is_found_and_that_is_said() -> None:
    assert libinfo.__version__ == "1.9.1"
    with pytest.raises(RuntimeError, match="without MXNet's library"):
        libinfo.find_lib_path()
    with pytest.raises(RuntimeError, match="without MXNet's library"):
        libinfo.find_include_path()
