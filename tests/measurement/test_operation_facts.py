"""Operations of a profile are joined to the instructions of their own module."""

from records_parts import module_record

from workbench.measurement._operation_facts import dtype_of_text, instructions_of


def test_instructions_are_those_of_the_module_that_is_asked_for_also_where_another_has_gone() -> None:
    for count in range(1, 40):  # Python gives a new record the place, and the `id`, of one that is gone
        module = module_record(count)
        assert list(instructions_of(module)) == [each.name for each in module.instructions]
        del module


def test_instructions_are_read_once_per_module() -> None:
    module = module_record()
    assert instructions_of(module) is instructions_of(module)


def test_dtype_of_a_text_is_that_of_its_first_array_of_the_largest_size() -> None:
    texts = ("f32[2] bf16[4,2] f32[8]", "bf16[1] f32[]")
    assert [dtype_of_text(text) for text in texts] == ["bfloat16", "bfloat16"]
