"""Several elementwise operators as one pass over memory, in a kernel of our own.

A step of standard operators reads and writes every intermediate result. Where numba is installed,
a session gets one node for a group of them (`session/fusion.py` writes it, `passes/fusion.py` has
chosen the group), and onnxruntime calls our kernel through its own interface for custom operators.

- `program`: a group of nodes as instructions;
- `codegen`, `functions`: a program as one loop of vector instructions, compiled by LLVM;
- `machine_code`: what was compiled, kept for the next process;
- `compiler_code`: gives LLVM's own code back to the system once nobody runs it;
- `driver`: calls it for all parts of a result, whatever is broadcast, on onnxruntime's threads;
- `library`, `stub`: how onnxruntime learns of it.

Single operators that onnxruntime computes slowly have kernels, too (`session/kernels.py` writes
their nodes, `passes/kernels.py` has marked what they stand for):

- `operators`: the table of all our operators;
- `tensors`: what their kernels share;
- `rows`, `elements`, `taking`, `picking`, `padding`, `folding`, `flips`, `turning`, `pools`,
  `unpool`, `running`, `across`, `sorting`, `minors`, `taps`, `dots`, `nearest`: one kernel each;
- `windows`: what cuts windows out of small images, and adds them up.

Without numba, on another system than Linux, or on another device than the host's processor, nodes
stay as they are.
"""
