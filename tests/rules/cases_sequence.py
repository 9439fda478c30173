"""Rules of control flow and sequences need more than one node to be shown."""

from .harness import Case

CASES: list[Case] = []

CONTROL_FLOW = "../autodiff/test_control_flow.py"
SEQUENCES = "../autodiff/test_sequences.py"
TESTED_ELSEWHERE = {
    "If": CONTROL_FLOW,
    "Loop": CONTROL_FLOW,
    "Scan": CONTROL_FLOW,
    "SequenceConstruct": SEQUENCES,
    "SequenceEmpty": SEQUENCES,
    "SequenceInsert": SEQUENCES,
    "SequenceErase": SEQUENCES,
    "SequenceAt": SEQUENCES,
    "SequenceLength": SEQUENCES,
    "SequenceMap": SEQUENCES,
    "SplitToSequence": SEQUENCES,
    "ConcatFromSequence": SEQUENCES,
    "Optional": SEQUENCES,
    "OptionalGetElement": SEQUENCES,
    "OptionalHasElement": SEQUENCES,
}
