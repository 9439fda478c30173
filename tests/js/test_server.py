"""The server gives out what it means to, and nothing else."""

import gzip
import http.client
import json

import onnx
import pytest

from onnxtrain.artifacts import LossType, generate_artifacts
from onnxtrain.cli.demo_model import digits_network
from onnxtrain.errors import OnnxTrainError
from onnxtrain.serve import Server, Site, SiteError
from tests.sharing import repeat, together


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "artifacts"
    made.mkdir()
    for name in ("training_model.onnx", "checkpoint"):
        (made / name).write_bytes(name.encode())
    (made / "private.txt").write_text("secret")
    (tmp_path / "secret").write_text("secret")
    return made


@pytest.fixture
def server(folder):
    with Server(Site(folder)) as running:
        yield running


def get(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_page_and_headers(server):
    status, headers, body = get(server, "/")
    assert status == 200
    assert b"<title>onnxtrain" in body
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "microphone=()" in headers["Permissions-Policy"]
    assert "Python" not in headers["Server"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/index.html", "text/html; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
        ("/js/page/app.js", "text/javascript; charset=utf-8"),
        ("/ort/ort.wasm.min.mjs", "text/javascript; charset=utf-8"),
        ("/ort/ort-wasm-simd-threaded.wasm", "application/wasm"),
        ("/info.json", "application/json"),
        ("/artifacts/checkpoint", "application/octet-stream"),
        ("/data/digits.npz", "application/octet-stream"),
    ],
)
def test_types(server, path, kind):
    status, headers, body = get(server, path)
    assert (status, headers["Content-Type"]) == (200, kind)
    assert len(body) == int(headers["Content-Length"]) > 0


def test_wasm_is_sent_compressed_to_those_who_can(server):
    _, headers, small = get(
        server, "/ort/ort-wasm-simd-threaded.wasm", **{"Accept-Encoding": "gzip"}
    )
    assert headers["Content-Encoding"] == "gzip"
    _, headers, large = get(server, "/ort/ort-wasm-simd-threaded.wasm")
    assert "Content-Encoding" not in headers
    assert gzip.decompress(small) == large
    assert large[:4] == b"\0asm"


@pytest.mark.parametrize(
    "path",
    [
        "/artifacts", "/artifacts/", "/js", "/js/", "/ort/", "/data/", "/artifacts/private.txt",
        "/artifacts/../secret", "/artifacts/%2e%2e/secret", "/artifacts/..%2fsecret",
        "/artifacts/%2e%2e%2fsecret", "/../secret", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd",
        "/etc/passwd", "/artifacts//etc/passwd", "/artifacts/%2fetc%2fpasswd",
        "/artifacts/..%5csecret", "/artifacts/checkpoint%00", "/artifacts/checkpoint/",
        "/artifacts/./checkpoint", "/js/../../server.py", "/js/%2e%2e/%2e%2e/server.py",
        "/ort/../index.html", "/ort/%2e%2e/index.html", "/data/../__init__.py", "/%ff",
    ],
)  # fmt: skip
def test_nothing_else(server, path):
    status, _, body = get(server, path)
    assert status == 404
    assert b"secret" not in body
    assert b"root:" not in body


def test_absolute_form_of_a_request_stays_inside(server):
    status, _, body = get(server, f"http://127.0.0.1:{server.port}/../../../etc/passwd")
    assert status == 404
    assert b"root:" not in body


def test_a_link_that_leads_out_is_not_followed(folder, server):
    (folder / "eval_model.onnx").symlink_to(folder.parent / "secret")
    assert get(server, "/artifacts/eval_model.onnx")[0] == 404
    (folder / "optimizer_model.onnx").symlink_to(folder / "checkpoint")
    assert get(server, "/artifacts/optimizer_model.onnx")[2] == b"checkpoint"


def test_links_and_odd_names_in_a_runtime_directory(folder, tmp_path):
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "ort.wasm.min.mjs").write_text("run")
    (dist / "ort.webgpu.min.mjs").symlink_to(tmp_path / "secret")
    (dist / "notes.txt").write_text("secret")
    with Server(Site(folder, runtime=dist)) as server:
        assert get(server, "/ort/ort.wasm.min.mjs")[2] == b"run"
        for name in ("ort.webgpu.min.mjs", "notes.txt", "../secret", "%2e%2e/secret", ""):
            assert get(server, f"/ort/{name}")[0] == 404


def test_artifacts_from_before_device_json(tmp_path):
    generate_artifacts(
        digits_network(), requires_grad=lambda name: True, loss=LossType.CrossEntropyLoss,
        artifact_directory=tmp_path, browser=True,
    )  # fmt: skip
    wanted = (tmp_path / "device.json").read_bytes()
    (tmp_path / "device.json").unlink()
    with Server(Site(tmp_path)) as server:
        assert get(server, "/artifacts/device.json")[2] == wanted
        (tmp_path / "training_model.onnx").write_bytes(b"damaged")
        assert get(server, "/artifacts/device.json")[0] == 404


def test_other_names_for_this_machine_are_refused(server):
    for host in ("evil.example", f"evil.example:{server.port}", ""):
        assert get(server, "/info.json", Host=host)[0] == 403
    assert get(server, "/info.json", Host=f"localhost:{server.port}")[0] == 200


def test_head_and_other_methods(server):
    status, headers, body = get(server, "/artifacts/checkpoint", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, str(len("checkpoint")), b"")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get(server, "/artifacts/checkpoint", method)[0] == 501


def test_info_and_prefix(folder):
    for name in ("training_model.onnx", "checkpoint"):
        (folder / name).rename(folder / f"small_{name}")
    with Server(Site(folder, "small_", "mine")) as server:
        info = json.loads(get(server, "/info.json")[2])
        assert info == {
            "name": "mine", "prefix": "small_", "webgpu": False, "tokenizer": [], "metadata": {},
        }  # fmt: skip
        assert get(server, "/artifacts/small_checkpoint")[0] == 200
        assert get(server, "/artifacts/checkpoint")[0] == 404


def test_a_tokenizer_beside_the_artifacts_or_elsewhere(folder, tmp_path):
    path = "/artifacts/tokenizer.json"
    with Server(Site(folder)) as server:
        assert get(server, path)[0] == 404
        (folder / "tokenizer.json").write_text("{}")
        status, headers, body = get(server, path)
        assert (status, headers["Content-Type"], body) == (200, "application/json", b"{}")
        (folder / "tokenizer_config.json").symlink_to(tmp_path / "secret")
        assert get(server, "/artifacts/tokenizer_config.json")[0] == 404
        assert json.loads(get(server, "/info.json")[2])["tokenizer"] == ["tokenizer.json"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text("[]")
    for given in (other, other / "tokenizer.json"):
        assert Site(folder, tokenizer=given).find(path).content == b"[]"
    for given in (tmp_path, tmp_path / "secret", tmp_path / "nowhere"):
        with pytest.raises(SiteError, match=r"is no tokenizer\.json"):
            Site(folder, tokenizer=given)


def test_names_of_classes_and_colours_come_from_the_model(folder, tmp_path):
    model = digits_network()
    onnx.helper.set_model_props(model, {"class_names": '["a"]', "image_mean": "[0.5]", "mine": "x"})
    onnx.save(model, tmp_path / "model.onnx")
    site = Site(folder, model=tmp_path / "model.onnx")
    assert site.info()["metadata"] == {"class_names": '["a"]', "image_mean": "[0.5]"}
    (tmp_path / "model.onnx").write_bytes(b"damaged")
    assert site.info()["metadata"] == {}


def test_mistakes_are_named(folder, tmp_path):
    with pytest.raises(SiteError, match="no directory"):
        Site(tmp_path / "nowhere")
    (folder / "checkpoint").unlink()
    with pytest.raises(SiteError, match="has no checkpoint") as caught:
        Site(folder)
    assert isinstance(caught.value, OnnxTrainError)
    (folder / "checkpoint").touch()
    with pytest.raises(SiteError, match="onnxruntime-web"):
        Site(folder, runtime=tmp_path)
    with Server(Site(folder)) as server, pytest.raises(SiteError, match="another --port"):
        Server(Site(folder), port=server.port)


def test_requests_of_several_threads_do_not_mix(server):
    def ask(name):
        status, headers, body = get(server, f"/artifacts/{name}")
        assert (status, body, int(headers["Content-Length"])) == (200, name.encode(), len(name))

    names = ("training_model.onnx", "checkpoint") * 2
    together(*(repeat(30, lambda name=name: ask(name)) for name in names))
