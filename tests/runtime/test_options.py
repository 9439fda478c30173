"""Session options of a user: what he set holds, what he left alone is ours, his object is his."""

from __future__ import annotations

import onnxruntime as ort
import pytest
from onnx import parser

from onnxtrain import optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.runtime.loop.trainer import Trainer
from onnxtrain.runtime.session import devices
from onnxtrain.runtime.session.cut_session import share_arena
from onnxtrain.runtime.session.devices import Device, create_session, session_options
from onnxtrain.runtime.session.options import ALLOCATORS, SPINNING, entry_of, may_spin

from . import handmade

ATTRIBUTES = (
    "enable_mem_pattern", "intra_op_num_threads", "graph_optimization_level", "log_severity_level",
    "enable_cpu_mem_arena", "inter_op_num_threads",
)  # fmt: skip


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("options")
    handmade.write(folder, optimizer=optim.adamw())
    return folder


def module_with(folder, options):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, session_options=options)
    return module, Optimizer(folder / "optimizer_model.onnx", module)


def looks(options):
    return {name: getattr(options, name) for name in ATTRIBUTES}


def entry(session, key):
    return session.get_session_options().get_session_config_entry(key)


def test_what_is_left_alone_is_ours(artifacts):
    given, before = ort.SessionOptions(), looks(ort.SessionOptions())
    module, optimizer = module_with(artifacts, given)
    module(*handmade.batch(0, 8))
    optimizer.step()
    used = module.gradient_step.session.get_session_options()
    assert not used.enable_mem_pattern
    assert used.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert looks(given) == before, "the user's object is as it was"
    assert entry_of(given, SPINNING) is None


def test_what_is_set_holds(artifacts):
    given = ort.SessionOptions()
    given.intra_op_num_threads = 3
    given.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    given.add_session_config_entry(SPINNING, "0")
    before = looks(given)
    module, _ = module_with(artifacts, given)
    module(*handmade.batch(0, 8))
    session = module.gradient_step.session
    used = session.get_session_options()
    assert used.intra_op_num_threads == 3
    assert used.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert entry(session, SPINNING) == "0"
    assert looks(given) == before
    assert entry_of(given, SPINNING) == "0"


def test_two_sessions_of_one_object_do_not_fight(artifacts):
    """The trap: threads of the first spin while the second works."""
    given = ort.SessionOptions()
    first, _ = module_with(artifacts, given)
    second, _ = module_with(artifacts, given)
    for module in (first, second):
        module(*handmade.batch(0, 8))
        assert entry(module.gradient_step.session, SPINNING) == "1"
    assert may_spin(given)


def test_a_second_completion_keeps_the_first():
    given = ort.SessionOptions()
    given.log_severity_level = 4
    once = session_options(given, threads=1, pattern=False)
    twice = session_options(once, threads=2, pattern=True, folder="here")
    session = create_session(identity(), twice)
    used = session.get_session_options()
    assert (used.intra_op_num_threads, used.enable_mem_pattern) == (1, False)
    assert used.log_severity_level == 4
    assert (given.intra_op_num_threads, given.enable_mem_pattern) == (0, True)


def test_what_was_lent_once_is_not_taken_for_the_users():
    """A second session with the same object shares the arena as the first did."""
    given = ort.SessionOptions()
    for _ in range(2):
        options = session_options(given)
        share_arena(options)
        session = create_session(identity(), options)
        assert entry(session, ALLOCATORS) == "1"
    with pytest.raises(RuntimeError, match=ALLOCATORS):
        session_options(given).get_session_config_entry(ALLOCATORS)


def test_onnxruntime_has_nothing_to_say_about_it(capfd):
    """It would write a line about each setting of ours that is put in and taken out again."""
    given = ort.SessionOptions()
    for _ in range(2):
        create_session(identity(), session_options(given, folder="here"))
    assert capfd.readouterr().err == ""


def test_the_copy_has_what_cannot_be_read(tmp_path):
    """Free dimensions and settings by a key that nobody asks for."""
    given = ort.SessionOptions()
    given.add_free_dimension_override_by_name("rows", 4)
    given.add_session_config_entry("session.set_denormal_as_zero", "1")
    given.enable_profiling, given.profile_file_prefix = True, str(tmp_path / "profile")
    session = create_session(identity("rows"), session_options(given))
    assert session.get_inputs()[0].shape == [4]
    assert entry(session, "session.set_denormal_as_zero") == "1"
    session.end_profiling()
    assert len(list(tmp_path.iterdir())) == 1, "of the session, none of the making of the copy"
    assert given.enable_profiling


def foreign(domain="my"):
    """A model of an operator that a library of the user's would bring."""
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "{domain}" : 1]> '
        f"g (float[2] x) => (float[2] y) {{ y = {domain}.Thing (x) }}"
    ).SerializeToString()


@pytest.mark.parametrize(("domain", "copies"), [("my", 0), ("com.microsoft", 1)])
def test_what_a_copy_lacks_is_taken_from_the_object_itself(monkeypatch, domain, copies):
    """Libraries of custom operators: a session of a copy does not find the operator."""
    given, seen = ort.SessionOptions(), []
    given.log_severity_level = 4
    stock = ort.InferenceSession

    def make(content, options, *rest, **more):
        seen.append(options)
        if options is not given:
            raise devices.ort.Fail(f"{domain}:Thing is not a registered function/op")
        assert options.get_session_config_entry(SPINNING) == "1"
        return stock(identity(), options, *rest, **more)

    monkeypatch.setattr(ort, "InferenceSession", make)
    create_session(foreign(domain), session_options(given))
    assert len(seen) == 1 + copies
    assert entry_of(given, SPINNING) is None, "and given back"
    assert may_spin(given)


def test_a_failure_gives_the_object_back():
    given = ort.SessionOptions()
    with pytest.raises(Exception, match="cannot load"):
        Device().session(b"junk", session_options(given, threads=1))
    assert given.intra_op_num_threads == 0
    assert entry_of(given, SPINNING) is None


def test_trainer_takes_them(artifacts):
    given = ort.SessionOptions()
    given.intra_op_num_threads = 2
    before = looks(given)
    trainer = Trainer.from_directory(artifacts, session_options=given)
    trainer.fit(handmade.batch(0, 16), 1, 8, progress=False)
    assert looks(given) == before


def identity(rows: object = 1) -> bytes:
    import onnx

    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> '
        f"g (float[{rows}] x) => (float[{rows}] y) {{ y = Neg(x) }}"
    ).SerializeToString()
