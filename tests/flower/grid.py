"""A grid that calls the clients in this process: Flower's apps and strategies, no network."""

from __future__ import annotations

import copy
from types import SimpleNamespace

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # of older releases, where the grid says whose a message is
    TaskIdentity = SimpleNamespace()


class LocalGrid(Grid):
    """Nodes 1 … n run one ClientApp; `lost` nodes do not answer, as if cut off or too slow.

    `lost` are nodes that never answer, or a dictionary of node and number of calls it answers.
    """

    def __init__(self, client_app, count: int, lost=()) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0  # the server's
        self.app, self.calls = client_app, []
        self.lost = lost if isinstance(lost, dict) else dict.fromkeys(lost, 0)
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": node - 1, "num-partitions": count},
                state=RecordDict(),
                run_config={},
            )
            for node in range(1, count + 1)
        }

    @property
    def run(self):
        return SimpleNamespace(run_id=1)

    def set_run(self, run_id):
        raise NotImplementedError

    def create_message(self, *arguments, **options):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.contexts)

    def get_nodes(self):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        self.calls.append(timeout)
        replies = []
        for message in map(copy.deepcopy, messages):  # as if they had been sent
            node = message.metadata.dst_node_id
            if len(self.calls) > self.lost.get(node, len(self.calls)):
                continue
            message.metadata._message_id = f"message {node}"  # the network would number them
            try:
                replies.append(self.app(message, self.contexts[node]))
            except Exception as error:
                replies.append(Message(Error(0, str(error)), reply_to=message))
        return replies
