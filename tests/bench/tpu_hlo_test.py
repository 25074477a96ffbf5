"""Reads costs from texts of compiled programs: cycles times loop trips, and operations by kind."""

import pytest

from bench.tpu_hlo import read_costs
from bert_jax.errors import UserError

# ruff: noqa: E501 (XLA writes long lines)
PROGRAM = """\
HloModule jit_step, is_scheduled=true

%body (p: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %p = (s32[], f32[8,128]{1,0}) parameter(0)
  %fusion.1 = f32[8,128]{1,0} fusion(%p), kind=kLoop, calls=%f, backend_config={"window_config":{"estimated_cycles":"100"}}
  %custom.1 = f32[8,128]{1,0} custom-call(%fusion.1), custom_call_target="tpu_custom_call", metadata={op_name="jit(step)/attention"}, frontend_attributes={kernel_metadata={
}}
  ROOT %tuple = (s32[], f32[8,128]{1,0}) tuple(%p, %custom.1)
}

%condition (p.1: (s32[], f32[8,128])) -> pred[] {
  %p.1 = (s32[], f32[8,128]{1,0}) parameter(0)
  %bound = u32[]{:T(128)} constant(BOUND)
  ROOT %less = pred[] compare(%p.1, %bound), direction=LT
}

ENTRY %main (a: f32[8,128]) -> f32[8,128] {
  %a = f32[8,128]{1,0} parameter(0)
  %copy-start = (f32[8,128]{1,0:S(1)}, f32[8,128], u32[]) copy-start(%a)
  %fusion.2 = f32[8,128]{1,0} fusion(%a), kind=kLoop, calls=%g, backend_config={"window_config":{"estimated_cycles":"7"}}
  %slice-start = ((bf16[8,128]{1,0}), bf16[2,128]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%a), slice={[0:2], [0:128]}
  %bits = u32[4,128]{1,0} rng-bit-generator(%a), algorithm=rng_default
  %while = (s32[], f32[8,128]{1,0}) while(%fusion.2), condition=%condition, body=%body
  %all-reduce = (f32[8,128]{1,0}, bf16[16]{0}) all-reduce(%while, %a), replica_groups={}
  %gather-start = (bf16[4,128]{1,0}, bf16[8,128]{1,0}) all-gather-start(%a), dimensions={0}
  %scatter = f32[8,128]{1,0} scatter(%a), to_apply=%g
  ROOT %result = f32[8,128]{1,0} get-tuple-element(%while), index=1
}
"""


def test_costs_are_multiplied_by_loop_trip_count():
    costs = read_costs(PROGRAM.replace("BOUND", "12"))
    assert costs.cycles == 7 + 12 * 100
    assert costs.kernel_runs == {"jit(step)/attention": 12}
    assert costs.collectives == {
        ("all-reduce", ()): [1, 8 * 128 * 4 + 16 * 2],
        ("all-gather", ()): [1, 8 * 128 * 2],
    }
    assert costs.copies == {"copy": [1, 8 * 128 * 4], "slice": [1, 2 * 128 * 2]}
    assert costs.num_loops == 1
    assert costs.random_bytes == 4 * 128 * 4
    assert costs.unknown == {"scatter": [1, 8 * 128 * 4]}


def test_unknown_trip_count_is_an_error():
    program = PROGRAM.replace("constant(BOUND)", "parameter(1)")
    with pytest.raises(UserError, match=r"trip count of the loop while .* is unknown"):
        read_costs(program)


def test_text_without_entry_is_an_error():
    with pytest.raises(UserError, match="no ENTRY"):
        read_costs("HloModule nothing")


SPLIT_COLLECTIVE = """\
HloModule jit_step, is_scheduled=true

%begin (p: bf16[8,128]) -> bf16[128,128] {
  %p = bf16[8,128]{1,0} parameter(0)
  ROOT %gather.1 = bf16[128,128]{1,0} all-gather(%p), channel_id=7, dimensions={0}
}

%middle (p.1: bf16[8,128]) -> bf16[128,128] {
  %p.1 = bf16[8,128]{1,0} parameter(0)
  ROOT %gather.2 = bf16[128,128]{1,0} all-gather(%p.1), channel_id=7, dimensions={0}
}

ENTRY %main (a: bf16[8,128]) -> bf16[128,128] {
  %a = bf16[8,128]{1,0} parameter(0)
  %fusion.1 = bf16[128,128]{1,0} fusion(%a), kind=kCustom, calls=%begin, backend_config={"window_config":{"estimated_cycles":"5"}}
  ROOT %fusion.2 = bf16[128,128]{1,0} fusion(%a), kind=kCustom, calls=%middle
}
"""


SPARSECORE_COLLECTIVE = """\
HloModule jit_step, is_scheduled=true

%called (p: bf16[8,128], t: token[]) -> bf16[8,128] {
  %t = token[] parameter(1)
  %p = bf16[8,128]{1,0} parameter(0)
  %sum = bf16[8,128]{1,0} all-reduce(%p), channel_id=7, to_apply=%add
  ROOT %copy = bf16[8,128]{1,0} copy(%sum), backend_config={"window_config":{"estimated_cycles":"9223372036854775807"}}
}, execution_thread="sparsecore"

ENTRY %main (a: bf16[8,128]) -> bf16[8,128] {
  %a = bf16[8,128]{1,0} parameter(0)
  %t.1 = token[] after-all()
  %sum-start = ((bf16[8,128]{1,0}, token[]), bf16[8,128]{1,0}) call-start(%a, %t.1), async_execution_thread="sparsecore", to_apply=%called
  ROOT %sum-done = bf16[8,128]{1,0} call-done(%sum-start)
}
"""


def test_collective_on_sparsecore_is_counted():
    costs = read_costs(SPARSECORE_COLLECTIVE)
    assert costs.collectives == {("all-reduce", ()): [1, 8 * 128 * 2]} and not costs.cycles


def test_collective_split_over_fusions_is_counted_once():
    costs = read_costs(SPLIT_COLLECTIVE)
    assert costs.collectives == {("all-gather", ()): [1, 128 * 128 * 2]}
    assert costs.cycles == 5 and list(costs.unknown) == ["fusion"]


CONDITIONAL = """\
HloModule jit_step, is_scheduled=true

%short (p: f32[8,128]) -> f32[8,128] {
  %p = f32[8,128]{1,0} parameter(0)
  ROOT %fusion.1 = f32[8,128]{1,0} fusion(%p), kind=kLoop, calls=%f, backend_config={"window_config":{"estimated_cycles":"10"}}
}

%long (p.1: f32[8,128]) -> f32[8,128] {
  %p.1 = f32[8,128]{1,0} parameter(0)
  ROOT %fusion.2 = f32[8,128]{1,0} fusion(%p.1), kind=kLoop, calls=%g, backend_config={"window_config":{"estimated_cycles":"20"}}
}

ENTRY %main (a: f32[8,128], c: pred[]) -> f32[8,128] {
  %a = f32[8,128]{1,0} parameter(0)
  %c = pred[] parameter(1)
  ROOT %either = f32[8,128]{1,0} conditional(%c, %a, %a), BRANCHES
}
"""


@pytest.mark.parametrize(
    "branches",
    [
        "true_computation=%long, false_computation=%short",
        "true_computation=%short, false_computation=%long",
        "branch_computations={%short, %long}",
    ],
)
def test_conditional_counts_most_expensive_branch(branches):
    assert read_costs(CONDITIONAL.replace("BRANCHES", branches)).cycles == 20


@pytest.mark.parametrize(
    ("line", "size"),
    [
        # Only the result is counted, not the operands and the context in the same tuple.
        ("(bf16[8,128]{1,0}, bf16[128,128]{1,0}) all-gather-start(%a)", 128 * 128 * 2),
        ("(bf16[128,128]{1,0}, bf16[8,128]{1,0}) reduce-scatter-start(%a)", 8 * 128 * 2),
        ("(f32[8,128], f32[8,128], u32[], u32[]) collective-permute-start(%a)", 8 * 128 * 4),
        ("((f32[8], f32[4]), (f32[128], f32[64])) all-gather-start(%a, %a)", (128 + 64) * 4),
        ("(f32[8,128], f32[16]) all-reduce-start(%a, %a)", (8 * 128 + 16) * 4),
    ],
)
def test_collective_bytes_are_its_result(line, size):
    program = f"HloModule one\n\nENTRY %main (a: f32[8]) -> f32[8] {{\n  ROOT %it = {line}\n}}\n"
    (row,) = read_costs(program).collectives.values()
    assert row == [1, size]
