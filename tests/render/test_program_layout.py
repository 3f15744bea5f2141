"""Where the parts of the program picture are."""

import records_examples as examples

from workbench.render._program_layout import lay_out


def test_a_group_of_clients_names_what_enters_and_leaves_it():
    layout = lay_out(examples.pods_record().plan)
    inner = [box for box in layout.boxes if box.form == "chip" and box.depth == 1]
    assert [box.title.split(":")[0] for box in inner] == ["in", "in", "out"]
