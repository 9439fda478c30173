from __future__ import annotations

import io
import math
from itertools import pairwise

import numpy as np
import onnxruntime
import pytest

from onnxtrain import optim
from onnxtrain.api import (
    Callback,
    CosineAnnealingLR,
    EarlyStopping,
    Progress,
    ReduceLROnPlateau,
    SaveCheckpoint,
    StepLR,
    Trainer,
    WarmUp,
)
from onnxtrain.errors import InputError, NonFiniteError, OnnxTrainWarning, StateError
from onnxtrain.runtime.loop import metrics
from onnxtrain.runtime.loop.batches import make_batches
from onnxtrain.runtime.step import kernels

from . import handmade

X, Y = handmade.batch(3, 50)
VX, VY = handmade.batch(4, 20)


def make(artifacts, one_graph=True, **options):
    return Trainer(
        artifacts.train,
        artifacts.optimizer,
        options.pop("state", artifacts.checkpoint),
        artifacts.eval,
        artifacts.step if one_graph else None,
        **options,
    )


def parameters(trainer):
    return {n: p.data.copy() for n, p in trainer.state.parameters}


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name


def quiet(trainer, data=(X, Y), **options):
    return trainer.fit(data, progress=False, **{"epochs": 2, "batch_size": 8, **options})


def test_one_graph_and_parts_give_the_same_numbers(artifacts):
    one, parts = make(artifacts), make(artifacts, one_graph=False)
    histories = [quiet(t, epochs=3, validation_data=(VX, VY)) for t in (one, parts)]
    assert one.step == parts.step == 21
    for name in histories[0]:
        assert np.allclose(histories[0][name], histories[1][name], rtol=1e-5), name
    for name, value in parameters(one).items():
        assert np.allclose(value, parameters(parts)[name], rtol=1e-5, atol=1e-6), name
    moments = [t.state.training_state.optimizer.states["first_order_moments"] for t in (one, parts)]
    for name in handmade.TRAINABLE:
        assert np.allclose(moments[0].view(name), moments[1].view(name), rtol=1e-4, atol=1e-7)
    assert histories[0]["loss"][-1] < histories[0]["loss"][0]


def test_state_can_be_read_and_set_between_one_graph_steps(artifacts):
    """After an odd number of steps the newest values are in the second set of buffers."""
    trainer = make(artifacts)
    seen = []

    class Peek(Callback):
        def on_step_end(self, trainer, logs):
            seen.append(trainer.state.parameters["W1"].data.copy())
            if len(seen) == 3:
                trainer.state.parameters["b2"] = np.zeros(3, np.float32)

    quiet(trainer, epochs=1, callbacks=[Peek()])
    assert not any(np.array_equal(a, b) for a, b in pairwise(seen))
    plain = make(artifacts)
    quiet(plain, epochs=1)
    assert not np.array_equal(parameters(plain)["b2"], parameters(trainer)["b2"])


@pytest.mark.parametrize("one_graph", [True, False])
@pytest.mark.parametrize("at", ["epoch", "step"])
def test_resume_is_bit_for_bit(artifacts, tmp_path, one_graph, at):
    def start(**options):
        return make(
            artifacts,
            one_graph,
            learning_rate=0.05,
            scheduler=lambda o: WarmUp(CosineAnnealingLR(o, 30), 4),
            metrics=["mse"],
            **options,
        )

    options = {"epochs": 4, "validation_data": (VX, VY), "seed": 7}
    straight = start()
    expected = quiet(straight, **options)
    every = {"every_epochs": 2} if at == "epoch" else {"every_steps": 11}

    class Crash(RuntimeError):
        pass

    class Saver(SaveCheckpoint):
        def _write(self, trainer):
            super()._write(trainer)
            raise Crash

    first = start()
    with pytest.raises(Crash):
        quiet(first, **options, callbacks=[Saver(tmp_path / "run", **every)])
    second = start(state=tmp_path / "run")
    assert second.step == (14 if at == "epoch" else 11)
    history = quiet(second, **options, resume=True)
    assert history == expected
    assert_equal(parameters(straight), parameters(second))
    for kind, store in straight.state.training_state.optimizer.states.items():
        other = second.state.training_state.optimizer.states[kind]
        assert all(np.array_equal(store.view(n), other.view(n)) for n in store)
    assert second.optimizer.get_learning_rate() == straight.optimizer.get_learning_rate()


def test_resume_needs_a_training_checkpoint(artifacts):
    with pytest.raises(StateError, match="nothing to resume"):
        quiet(make(artifacts), resume=True)


def test_data_in_every_form(artifacts):
    expected = make(artifacts)
    quiet(expected, shuffle=False)
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 50, 8)]
    dicts = [{"target": y, "x": x} for x, y in batches]

    class Loader:
        def __iter__(self):
            return iter(batches)

    forms = [{"target": Y, "x": X}, batches, dicts, Loader()]
    for data in forms:
        trainer = make(artifacts)
        quiet(trainer, data, shuffle=False)
        assert_equal(parameters(expected), parameters(trainer))


def test_torch_data_loader(artifacts):
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    loader = torch.utils.data.DataLoader(dataset, batch_size=8)
    expected, trainer, tensors = make(artifacts), make(artifacts), make(artifacts)
    quiet(expected, shuffle=False)
    quiet(trainer, loader)
    quiet(tensors, (torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)), shuffle=False)
    assert_equal(parameters(expected), parameters(trainer))
    assert_equal(parameters(expected), parameters(tensors))


def test_wrong_data(artifacts):
    trainer = make(artifacts)
    cases = {
        "different numbers of rows": (X, Y[:3]),
        "no rows": (X[:0], Y[:0]),
        "empty tuple": (),
        "no batch": [],
        "not understood": 5,
        r"have no \['target'\]": {"x": X},
        "takes 2 input": (X,),
        "needs float32": (X.astype("f8"), Y),
        "empty batch": [(X[:0], Y[:0])],
    }
    before = parameters(trainer)
    for message, data in cases.items():
        with pytest.raises(InputError, match=message):
            quiet(trainer, data)
    with pytest.raises(InputError, match="batch_size"):
        quiet(trainer, batch_size=0)
    with pytest.raises(InputError, match="iterated once"):
        quiet(trainer, ((X, Y) for _ in range(1)))
    assert trainer.step == 1, "only the generator's single batch was trained"
    assert not np.array_equal(before["W1"], parameters(trainer)["W1"])


def test_options(artifacts):
    for options, message in (
        ({"scheduler_interval": "week"}, "scheduler_interval"),
        ({"accumulate": 0}, "accumulate"),
        ({"metrics": ["nothing"]}, "Unknown metric"),
    ):
        with pytest.raises(ValueError, match=message):
            make(artifacts, **options)
    with pytest.raises(FileNotFoundError, match="no directory"):
        Trainer.from_directory("/nonexistent")
    with pytest.raises(NonFiniteError, match="epoch 0, batch 0"):
        quiet(make(artifacts, check_finite=True), (np.full_like(X, np.nan), Y))
    no_eval = Trainer(artifacts.train, artifacts.optimizer, artifacts.checkpoint)
    with pytest.raises(StateError, match="Eval model was not provided"):
        no_eval.evaluate((X, Y))


def test_accumulation_averages_micro_batches(artifacts):
    """Four micro-batches of 2 update as one batch of 8 does, running statistics apart."""
    state_of = []
    for size, accumulate in ((8, 1), (2, 4)):
        trainer = make(artifacts, one_graph=False, accumulate=accumulate)
        trainer.state.parameters["running_mean"] = np.zeros(4, np.float32)
        trainer._engine.module.gradient_step.artifact.states.clear()
        trainer._engine.module.gradient_step.next_states.specs.clear()
        data = (X[:40], Y[:40])
        quiet(trainer, data, batch_size=size, epochs=1, shuffle=False)
        assert trainer.step == 5
        state_of.append(parameters(trainer))
    for name in handmade.TRAINABLE:
        assert np.allclose(state_of[0][name], state_of[1][name], rtol=1e-4, atol=1e-6), name


def test_rest_of_an_epoch_is_not_lost(artifacts):
    trainer = make(artifacts, one_graph=False, accumulate=4, scheduler=lambda o: StepLR(o, 100))
    quiet(trainer, epochs=1)  # 7 batches: one update from 4, one from 3
    assert trainer.step == 2
    assert trainer.scheduler.count == 2


def test_compiled_update_goes_before_one_graph(artifacts, monkeypatch):
    assert type(make(artifacts)._engine).__name__ == "OneGraphEngine"
    monkeypatch.setattr(kernels, "COMPILED_PARAMETERS", 0)
    monkeypatch.setattr(kernels, "available", lambda: True)
    assert type(make(artifacts)._engine).__name__ == "TwoPartEngine"


def test_interrupted_accumulation_is_forgotten(artifacts):
    trainer = make(artifacts, one_graph=False, accumulate=4)
    with pytest.raises(InputError):
        quiet(trainer, [(X[:8], Y[:8]), (X[:8], Y[:7])])
    assert trainer._engine._pending == 1
    again = make(artifacts, one_graph=False, accumulate=4)
    trainer.state.parameters["running_mean"] = again.state.parameters["running_mean"].data
    for each in (trainer, again):
        quiet(each, epochs=1)
    assert_equal(parameters(trainer), parameters(again))


def test_clip_norm(artifacts):
    trainer = make(artifacts, clip_norm=1e-3)
    assert trainer._engine.optimizer.clip_norm == 1e-3
    quiet(trainer, epochs=1)


def test_metrics_validation_and_history(artifacts):
    trainer = make(artifacts, metrics=["mae", "mse", "r2"])
    history = quiet(trainer, epochs=3, validation_data=(VX, VY))
    assert set(history) == {"loss", "lr", "val_loss", "val_mae", "val_mse", "val_r2"}
    assert all(len(v) == 3 for v in history.values())
    out = trainer.predict(VX, batch_size=7)
    assert out.shape == (20, 3)
    result = trainer.evaluate((VX, VY), batch_size=7)
    assert math.isclose(result["mse"], np.square(out - VY).mean(), rel_tol=1e-5)
    assert math.isclose(result["loss"], result["mse"], rel_tol=1e-5)
    assert math.isclose(result["mae"], np.abs(out - VY).mean(), rel_tol=1e-5)
    r2 = 1 - np.square(out - VY).sum(0) / np.square(VY - VY.mean(0)).sum(0)
    assert math.isclose(result["r2"], r2.mean(), rel_tol=1e-5)
    assert np.array_equal(trainer.predict((VX, VY)), trainer.predict({"x": VX}))


def test_export(artifacts, tmp_path):
    trainer = make(artifacts)
    quiet(trainer)
    trainer.export(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    assert np.allclose(session.run(None, {"x": VX})[0], trainer.predict(VX), atol=1e-6)


def test_early_stopping(artifacts):
    trainer = make(artifacts, learning_rate=0.05)
    best = {}

    def remember(trainer, logs):
        if not best or logs["val_loss"] < best["loss"]:
            best.update(loss=logs["val_loss"], parameters=parameters(trainer))

    stopping = EarlyStopping(patience=2)
    history = quiet(trainer, epochs=200, validation_data=(VX, VY), callbacks=[remember, stopping])
    assert 3 < len(history["loss"]) < 200
    assert stopping.stopped_epoch == len(history["loss"]) - 1
    assert_equal(parameters(trainer), best["parameters"])
    with pytest.raises(ValueError, match="validation_data"):
        quiet(make(artifacts), callbacks=[EarlyStopping("val_loss")])


def test_plateau_counts_epochs(artifacts):
    trainer = make(artifacts, scheduler=lambda o: ReduceLROnPlateau(o, patience=0, threshold=10.0))
    history = quiet(trainer, epochs=3)
    assert history["lr"] == pytest.approx([1e-3, 1e-3, 1e-4])


def test_checkpoint_files(artifacts, tmp_path):
    saver = SaveCheckpoint(tmp_path / "c-{epoch}", every_epochs=2)
    quiet(make(artifacts), epochs=5, callbacks=[saver])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c-2", "c-4"]
    best = SaveCheckpoint(tmp_path / "best", best="val_loss")
    trainer = make(artifacts, learning_rate=0.1)
    history = quiet(trainer, epochs=8, validation_data=(VX, VY), callbacks=[best])
    loaded = make(artifacts, state=tmp_path / "best")
    assert loaded.evaluate((VX, VY), 8)["loss"] == pytest.approx(min(history["val_loss"]), rel=1e-6)


def test_progress(artifacts):
    out = io.StringIO()
    make(artifacts).fit((X, Y), epochs=2, batch_size=8, progress=False, callbacks=[Progress(out)])
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("epoch 2  ")
    assert "loss" in lines[0]


def test_shuffle_depends_on_seed_and_epoch_only():
    rows = np.arange(10)
    orders = [
        np.concatenate(
            [b[0].copy() for b in make_batches((rows,), ["x"], 4, shuffle=True, seed=s).epoch(e)]
        ).tolist()
        for s, e in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert orders[0] == orders[1] != orders[2] != orders[3]
    assert all(sorted(o) == list(range(10)) for o in orders)
    source = make_batches((rows,), ["x"], 4, shuffle=True, seed=0, drop_last=True)
    assert source.size == 2
    assert [b[0].tolist() for b in source.epoch(0, skip=1)] == [orders[0][4:8]]


# --- metrics -------------------------------------------------------------------------------------


def test_metrics_against_scikit_learn():
    learn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(60, 5)), rng.integers(0, 5, 60)
    numbers, targets = rng.normal(size=(60, 2)), rng.normal(size=(60, 2)) + 5

    def gathered(metric, prediction, target):
        for at in range(0, 60, 13):
            metric.update(prediction[at : at + 13], target[at : at + 13], 0.0)
        return metric.result()

    one_hot = np.eye(5)[labels]
    for target in (labels, one_hot):
        assert gathered(metrics.Accuracy(), scores, target) == pytest.approx(
            learn.accuracy_score(labels, scores.argmax(1))
        )
    assert gathered(metrics.TopK(2), scores, labels) == pytest.approx(
        learn.top_k_accuracy_score(labels, scores, k=2)
    )
    assert gathered(metrics.R2(), numbers, targets) == pytest.approx(
        learn.r2_score(targets, numbers)
    )
    binary = rng.integers(0, 2, 60)
    assert gathered(metrics.Accuracy(), scores[:, :1], binary) == pytest.approx(
        learn.accuracy_score(binary, scores[:, 0] > 0)
    )
    perplexity = metrics.Perplexity()
    perplexity.update(scores, labels, 2.0)
    assert perplexity.result() == pytest.approx(math.exp(2.0))
    assert math.isnan(metrics.MeanAbsoluteError().result())
    with pytest.raises(InputError, match="do not fit"):
        metrics.Accuracy().update(scores, labels[:3], 0.0)


def test_dropout_resume_draws_new_masks(tmp_path):
    made = handmade.write(tmp_path, dropout=True, optimizer=optim.sgd())
    trainer = Trainer(made.train, made.optimizer, made.checkpoint, made.eval)
    quiet(trainer, epochs=1)
    generation = trainer.state.training_state.random.generation
    trainer.save(tmp_path / "run")
    runs = []
    for _ in range(2):
        again = Trainer(made.train, made.optimizer, tmp_path / "run", made.eval)
        assert again.state.training_state.random.generation == generation + 1
        quiet(again, epochs=2, resume=True)
        runs.append(parameters(again))
    assert_equal(*runs)


def fixed(artifacts, rows):
    """The same files for batches of one size only."""
    import onnx

    changed = []
    for source in (artifacts.train, artifacts.eval, artifacts.step):
        model = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source)
        for value in model.graph.input:
            dims = value.type.tensor_type.shape.dim
            if dims and dims[0].dim_param:
                dims[0].dim_value = rows
        changed.append(model.SerializeToString())
    return Trainer(changed[0], artifacts.optimizer, artifacts.checkpoint, changed[1], changed[2])


def test_a_fixed_batch_leaves_rows_out_and_says_so(artifacts):
    trainer, free = fixed(artifacts, 8), make(artifacts)
    with pytest.warns(OnnxTrainWarning, match="so 2 of 50 are left out") as told:
        history = quiet(trainer)
    assert told[0].filename == __file__
    assert history == quiet(free, drop_last=True)
    assert_equal(parameters(trainer), parameters(free))
    assert np.array_equal(trainer.predict(X), free.predict(X))
    with pytest.raises(InputError, match="exactly 8 rows, and here are 16"):
        quiet(trainer, batch_size=16)
    with pytest.raises(InputError, match="here are 5 in all"):
        quiet(trainer, (X[:5], Y[:5]))


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_metrics_of_classes_are_those_of_scikit_learn(classes):
    reference = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, max(2, classes), 60)
    scores = rng.standard_normal((60, classes)).astype(np.float32)
    if classes == 1:
        scores = np.round(scores, 1)  # ties
    computed = metrics.resolve(["precision", "recall", "f1", "auc"])
    for start in range(0, 60, 25):
        for metric in computed:
            metric.update(scores[start : start + 25], labels[start : start + 25], 0.0)
    if classes == 1:
        chosen, average = (scores[:, 0] > 0).astype(int), "binary"
        area = reference.roc_auc_score(labels, scores[:, 0])
    else:
        chosen, average = scores.argmax(axis=1), "macro"
        powers = np.exp(scores.astype(float))
        shares = powers / powers.sum(axis=1, keepdims=True)
        area = reference.roc_auc_score(
            np.eye(classes)[labels], shares, multi_class="ovr", average="macro"
        )
    expected = [
        f(labels, chosen, average=average, zero_division=0)
        for f in (reference.precision_score, reference.recall_score, reference.f1_score)
    ]
    assert [m.result() for m in computed] == pytest.approx([*expected, area])
    first, second = metrics.F1(), metrics.F1()
    first.update(scores[:20], labels[:20], 0.0)
    second.update(scores[20:], labels[20:], 0.0)
    merged = metrics.F1()
    merged.merge([first.state(), second.state(), np.zeros(0)])
    assert merged.result() == pytest.approx(expected[2])
    for metric in computed:
        metric.reset()
        assert math.isnan(metric.result())
