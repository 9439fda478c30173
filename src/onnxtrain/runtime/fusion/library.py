"""How onnxruntime learns of our operators: its interface for custom operators, from Python.

The interface is a table of C functions (`OrtApi`) that onnxruntime only ever extends at its end,
so a function keeps its place. What runs in a step is compiled; Python is asked while
sessions are callback, and never after: nothing of it may be gone when the last session goes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ...preparing import preparing
from ..step.kernels import available as has_numba
from . import stub
from .compiler_code import release_compiler, release_free_memory
from .machine_code import forget_stale
from .operators import ELEMENTWISE, MISFITS, OPERATORS, Operator
from .program import Program, ProgramError

DOMAIN, OPERATOR = ELEMENTWISE.domain, ELEMENTWISE.name
API_VERSION = 17
"""Of onnxruntime's interface: 1.17 has all that is used here, but for results in the place of
operands: """
VERSION_IN_PLACE = 18

Address = ctypes.c_void_p
Integers: TypeAlias = "ctypes.Array[ctypes.c_int64]"
(CREATE_STATUS, GET_DATA, GET_TYPE, GET_RANK, GET_DIMS, GET_INFO) = (0, 51, 60, 61, 62, 65)
(CREATE_DOMAIN, ADD_OPERATOR, ADD_DOMAIN, RELEASE_INFO) = (26, 27, 28, 99)
(GET_STRING, GET_INPUT, GET_OUTPUT, PARALLEL_FOR) = (87, 90, 91, 274)
GET_INPUT_SHAPE, SET_OUTPUT_SHAPE = 268, 270
"""Places in onnxruntime's table of functions."""
FUNCTIONS, CALLED = 276, 10
"""How many the table has that are known here, and how many of them kernels call."""

PROGRAM = re.compile(rb'\n\x07program"[\x80-\xff]*[\x00-\x7f]([\d -]+)')
"""An attribute with the program of a fused node: its name, and a text with its size before it."""

REQUIRED, VARIADIC, HETEROGENEOUS, HOMOGENEOUS = 0, 2, 0, 1
FAILED = 1
"""onnxruntime's code of an error."""
LAST_VERSION = 2**31 - 1
MOST_OPERANDS = max(len((*operator.inputs, *operator.outputs)) for operator in OPERATORS)
NUMBERS = (*range(MOST_OPERANDS + 1), LAST_VERSION)
"""What an operator may answer: counts, kinds, numbers of types (the largest is 7), versions."""
MISFIT = (
    b"The inputs of a fused node do not have the shapes and types that they were fused for. "
    b"ONNXTRAIN_NO_FUSION=1 runs the operators one by one."
)
FIELDS = (
    "CreateKernel", "GetName", "GetProvider", "GetInputType", "GetInputCount", "GetOutputType",
    "GetOutputCount", "Compute", "Destroy", "GetInputKind", "GetOutputKind", "GetMemoryType",
    "GetLeastInputs", "AreInputsAlike", "GetLeastOutputs", "AreOutputsAlike", "CreateKernelV2",
    "ComputeV2", "InferShapes", "GetFirstVersion", "GetLastVersion", "GetInPlace",
    "ReleaseInPlace", "GetAliases", "ReleaseAliases",
)  # fmt: skip
"""Functions of a custom operator, in the order of onnxruntime 1.18; those of later versions follow,
and the last four are not read where the version says 17."""


class CustomOperator(ctypes.Structure):
    """What onnxruntime asks a custom operator (`OrtCustomOp`)."""

    _fields_ = [("version", ctypes.c_uint32), *((name, Address) for name in FIELDS)]


def is_available() -> bool:
    """Whether sessions of this process can have fused nodes, as far as can be told at once."""
    if os.environ.get("ONNXTRAIN_NO_FUSION", "") not in {"", "0"}:
        return False
    return stub.machine() is not None and has_numba()


def register(options: Any, operators: Collection[Operator]) -> bool:
    """Tell session options of some operators; False if there is no kernel for them.

    onnxruntime describes all operators of its options to itself for every session: 0.25 ms for the
    thirteen, 0.05 for one.
    """
    library = _library()
    if library is not None:
        library.register(options, operators)
    return library is not None


def prepare(content: bytes, operators: Collection[Operator]) -> None:
    """Load the code of a large model's kernels, and let the compiler's go.

    Before onnxruntime reads the weights: while it makes a session it has them twice, and the
    compiler would be in memory besides.

    Args:
        content: the model that a session will be made of.
        operators: those that it has nodes of.
    """
    library = _library() if operators else None
    if library is not None:
        with contextlib.suppress(Exception):  # onnxruntime hears of it when it creates the kernel
            library.prepare(content, operators)
    release_compiler()
    release_free_memory()


def register_path() -> str:
    """The path that `SessionOptions.register_custom_ops_library` takes; "" if there is none.

    It brings all operators. The first call of a process loads the kernel, and compiles it on the
    first call ever.
    """
    library = _library()
    return "" if library is None else library.path


def kernel_count() -> int:
    """How many kernels sessions of this process have been given so far: one for a node of ours."""
    library = _library()
    return 0 if library is None else library.kernel_count


@functools.cache
def _library() -> _Library | None:
    """What is behind the path, for as long as the process lives."""
    try:
        return _Library()
    except Exception:  # a cache that cannot be written, a processor that LLVM does not know, …
        return None


class _Library:
    """The operators, and what has to stay in memory for them.

    Attributes:
        path: what onnxruntime takes for the file of a library.
        kernel_count: how many kernels onnxruntime has been given.
    """

    def __init__(self) -> None:
        forget_stale(Path(__file__).parent)
        with preparing("compiling the fused kernel with numba"):
            from . import codegen, driver, tensors

        self._codegen, self._driver, self._tensors = codegen, driver, tensors
        self.kernel_count = 0
        self._states = dict[str, Integers]()
        self._compiled = dict[Operator, Sequence[int]]()
        self._lock = threading.Lock()
        self._callbacks: list[Any] = []
        self._domains = dict[str, int]()
        self._asked = threading.local()
        self._functions: Any = None
        self._message = ctypes.create_string_buffer(MISFIT)
        self._misfits = [ctypes.create_string_buffer(text) for text in MISFITS]
        self._libc = ctypes.CDLL(None)
        self._libc.malloc.restype = Address
        self._libc.malloc.argtypes = [ctypes.c_size_t]
        names = [ctypes.create_string_buffer(operator.name.encode()) for operator in OPERATORS]
        self._callbacks += names
        constants = sorted({*NUMBERS, *(ctypes.addressof(name) for name in names)})
        register = self._callback(self._register, Address, Address, Address)
        self._stub = stub.Library(register, constants)
        self.path = self._stub.path
        gives = dict(zip(constants, self._stub.functions))
        self._operators = [
            self._describe(operator, gives[ctypes.addressof(name)], gives)
            for operator, name in zip(OPERATORS, names)
        ]

    def _callback(self, function: Any, result: Any, *arguments: Any) -> int:
        """The address of a Python function, which is kept."""
        callback = ctypes.CFUNCTYPE(result, *arguments)(function)
        self._callbacks.append(callback)
        address = ctypes.cast(callback, Address).value
        assert address is not None
        return address

    def _describe(self, described: Operator, name: int, gives: Mapping[int, int]) -> CustomOperator:
        """An operator; `name` is a function that returns its name, as `gives` has for numbers."""
        operator = CustomOperator(version=API_VERSION)
        kind = VARIADIC if described.is_variadic else REQUIRED
        create = self._create if described is ELEMENTWISE else functools.partial(
            self._create_from_table, described
        )  # fmt: skip

        def gives_one_of(values: tuple[int, ...]) -> int:
            if len(set(values)) == 1:
                return gives[values[0]]
            get = lambda _, place: values[min(place, len(values) - 1)]  # noqa: E731
            return self._callback(get, ctypes.c_int, Address, ctypes.c_size_t)

        operator.GetName = name
        operator.GetProvider = gives[0]
        operator.GetInputType = gives_one_of(described.inputs)
        operator.GetOutputType = gives_one_of(described.outputs)
        operator.GetInputCount = gives[len(described.inputs)]
        operator.GetOutputCount = gives[len(described.outputs)]
        operator.GetInputKind = operator.GetOutputKind = gives[kind]
        operator.GetMemoryType = gives[0]
        operator.GetLeastInputs = operator.GetLeastOutputs = gives[1]
        operator.AreInputsAlike = gives[HETEROGENEOUS]
        operator.AreOutputsAlike = gives[HOMOGENEOUS]
        operator.GetFirstVersion = gives[1]
        operator.GetLastVersion = gives[LAST_VERSION]
        operator.CreateKernelV2 = self._callback(
            create, Address, Address, Address, Address, ctypes.POINTER(Address)
        )
        compute = self._driver.compute if described is ELEMENTWISE else self._tensors.compute
        operator.ComputeV2 = compute.address
        operator.Destroy = ctypes.cast(self._libc.free, Address).value
        if described.in_place:
            self._allow_in_place(operator)
        return operator

    def _allow_in_place(self, operator: CustomOperator) -> None:
        """The result may be where the first input is.

        onnxruntime does so where it sees that both have one size, and nobody reads the input later.
        """
        first = (ctypes.c_int * 1)(0)
        self._callbacks.append(first)
        pointer = ctypes.POINTER(Address)

        def get(inputs: Any, outputs: Any) -> int:
            inputs[0] = outputs[0] = ctypes.addressof(first)
            return 1

        operator.version = VERSION_IN_PLACE
        operator.GetInPlace = self._callback(get, ctypes.c_size_t, pointer, pointer)
        operator.ReleaseInPlace = self._callback(lambda *_: None, None, Address, Address)
        operator.InferShapes = self._callback(self._as_first_input, Address, Address, Address)

    def _as_first_input(self, _operator: int, context: int) -> int | None:
        """The first output has the type and shape of the first input."""
        info, first = Address(), ctypes.c_size_t(0)
        status = self._call(GET_INPUT_SHAPE, Address(context), first, ctypes.byref(info))
        return status or self._call(SET_OUTPUT_SHAPE, Address(context), first, info)

    def prepare(self, content: bytes, operators: Collection[Operator]) -> None:
        """Load the code of the kernels that a model has, see `prepare`."""
        for operator in operators:
            if operator is not ELEMENTWISE:
                self._compiled_of(operator)
        for text in PROGRAM.findall(content):
            self._state_of(text.decode())

    def register(self, options: Any, operators: Collection[Operator]) -> None:
        """Tell options of some operators only."""
        self._asked.operators = operators
        try:
            options.register_custom_ops_library(self.path)
        finally:
            del self._asked.operators

    def _register(self, options: int, base: int) -> int | None:
        """What `RegisterCustomOps` does: the domains of the operators asked for, or of all."""
        with self._lock:
            if not self._domains:
                self._make_domains(base)
        status = None
        for operator in getattr(self._asked, "operators", OPERATORS):
            domain = Address(self._domains[operator.name])
            status = status or self._call(ADD_DOMAIN, Address(options), domain)
        return status

    def _make_domains(self, base: int) -> None:
        get = ctypes.CFUNCTYPE(Address, ctypes.c_uint32)(Address.from_address(base).value or 0)
        table = get(API_VERSION)
        self._functions = (Address * FUNCTIONS).from_address(table or 0)
        for described, operator in zip(OPERATORS, self._operators, strict=True):
            domain, name = Address(), ctypes.c_char_p(described.domain.encode())
            self._call(CREATE_DOMAIN, name, ctypes.byref(domain))
            self._call(ADD_OPERATOR, domain, ctypes.byref(operator))
            self._domains[described.name] = domain.value or 0

    def _call(self, place: int, *arguments: Any) -> int | None:
        """A function of onnxruntime's that returns nothing, or an error."""
        status: int | None = ctypes.CFUNCTYPE(Address)(self._functions[place])(*arguments)
        return status

    def _create(self, _operator: int, _api: int, info: int, kernel: Any) -> int | None:
        """The state of a node, in memory that the C library frees."""
        try:
            state = self._state_of(self._string(info, b"program"))
        except (ProgramError, OSError, ValueError) as error:
            return self._call(CREATE_STATUS, ctypes.c_int(FAILED), str(error).encode())
        kernel[0] = self._lasting(state)
        return None

    def _state_of(self, text: str) -> Integers:
        """What a kernel of a program needs to know; its code is compiled if it is the first."""
        if text not in self._states:
            program = Program.parse(text)
            address, spilled = self._codegen.compiled(program), self._codegen.spilled(program)
            self._states[text] = _integers(program.state(spilled, address, self._addresses()))
        return self._states[text]

    def _create_from_table(
        self, described: Operator, _operator: int, _api: int, info: int, kernel: Any
    ) -> int | None:
        """The same of a node of another operator; its kernel is compiled if it is the first."""
        try:
            numbers = described.parse(self._string(info, b"numbers"))
            compiled = self._compiled_of(described)
            messages = [ctypes.addressof(text) for text in self._misfits]
            state = self._tensors.state(
                compiled, self._addresses()[:CALLED], messages, os.cpu_count() or 1, numbers
            )
            kernel[0] = self._lasting(_integers(state))
        except Exception as error:  # of numba, too: onnxruntime must hear of it, not ctypes
            return self._call(CREATE_STATUS, ctypes.c_int(FAILED), str(error).encode())
        return None

    def _compiled_of(self, operator: Operator) -> Sequence[int]:
        """Addresses of what an operator runs; it is compiled or loaded if they are asked for first.

        What tells of that starts a thread, 0.2 ms: as long as ten nodes take onnxruntime.
        """
        if operator not in self._compiled:
            with preparing(f"compiling the kernel of {operator.name} with numba"):
                self._compiled[operator] = operator.load()
        return self._compiled[operator]

    def _lasting(self, state: Integers) -> int:
        """The address of memory with these integers, which are the state of one more kernel."""
        memory: int | None = self._libc.malloc(8 * len(state))
        if not memory:
            raise MemoryError
        self.kernel_count += 1
        ctypes.memmove(memory, state, 8 * len(state))
        return memory

    def _string(self, info: int, name: bytes) -> str:
        """An attribute of a node."""
        size = ctypes.c_size_t(0)
        read = functools.partial(self._call, GET_STRING, Address(info), ctypes.c_char_p(name))
        read(None, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        if read(buffer, ctypes.byref(size)):
            raise ProgramError(f"a fused node has no {name.decode()}")
        return buffer.value.decode()

    def _addresses(self) -> list[int]:
        """What the kernel calls, in the order of its state."""
        places = (
            GET_INPUT, GET_OUTPUT, GET_DATA, GET_INFO, GET_TYPE, GET_RANK, GET_DIMS, RELEASE_INFO,
            PARALLEL_FOR, CREATE_STATUS,
        )  # fmt: skip
        functions = [self._functions[place] or 0 for place in places]
        return [*functions, ctypes.addressof(self._message), self._driver.run_chunk.address or 0]


def _integers(numbers: list[int]) -> Integers:
    return (ctypes.c_int64 * len(numbers))(*numbers)
