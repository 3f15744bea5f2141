"""Cells in a real kernel: their number stands in the tree, never the temporary file that IPython compiles them as."""

import queue
import time

from jupyter_client.manager import start_new_kernel

DEFINED = """import jax.numpy as jnp, workbench as wb
def layer(x):
    return x @ x
"""
ASKED = """
tree = wb.inspect(layer)(jnp.ones((8, 8))).call_tree
print(sorted({(node.file, node.line) for node in tree.nodes if node.own.flops_matmul}))
"""


def printed(client, code: str, seconds: float = 300.0) -> str:
    """What a cell prints, or the name of its error."""
    asked, text, until = client.execute(code), "", time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if message["parent_header"].get("msg_id") != asked:
            continue
        if message["msg_type"] == "stream":
            text += message["content"]["text"]
        if message["msg_type"] == "error":
            text += message["content"]["ename"]
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return text
    raise TimeoutError


def test_a_line_of_a_cell_is_that_of_its_number():
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        assert printed(client, "1 + 1") == ""
        assert printed(client, DEFINED) == ""
        assert printed(client, ASKED) == "[('In [2]', 3)]\n"
        assert printed(client, DEFINED) == ""
        assert printed(client, ASKED) == "[('In [4]', 3)]\n"  # the same text ran again, under another number
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
