"""What decides in doubt: each question, the decision, and the tests that hold it."""

from __future__ import annotations

from dataclasses import dataclass

S = "test_semantics"


@dataclass(frozen=True, slots=True)
class Decision:
    """One question on which implementations disagree."""

    question: str
    decision: str
    tests: tuple[str, ...]
    """Module and function."""


DECISIONS = (
    Decision(
        "reference",
        "the PrimFunc's own expression in float64; each explicit Cast rounds where it stands, "
        "buffers in between do not",
        ("test_facts_forms::test_explicit_casts_round_and_buffers_do_not", "test_fuzz::test_random_programs"),
    ),
    Decision(
        "accumulators",
        "sums of 16-bit and 32-bit floats accumulate in float32, whatever the PrimFunc says",
        ("test_faults_values::test_accumulators_do_not_stick",),
    ),
    Decision(
        "row of −∞ in softmax and log-softmax",
        "NaN, as IEEE has it, at every width, packing, reuse and dtype, in all three numeric modes",
        (
            f"{S}::test_a_row_of_minus_infinity_is_nan_whatever_the_plan",
            f"{S}::test_rows_with_infinities_and_nan",
        ),
    ),
    Decision(
        "row with +∞ in softmax",
        "NaN in the whole row (the stable form computes ∞ − ∞)",
        ("test_faults_values::test_infinity_and_nan_stay_in_their_row",),
    ),
    Decision(
        "NaN in softmax and norms",
        "reaches its whole row and no other",
        (f"{S}::test_rows_with_infinities_and_nan",),
    ),
    Decision(
        "infinity in a norm",
        "the PrimFunc's own expression: zeros, and NaN where the infinity stood. Under fast math "
        "this rests on 1/√∞ being 0,"
        " which the GPUs give and the CPU model's host compiler does not, so the fast mode does not test it",
        (f"{S}::test_rows_with_infinities_and_nan",),
    ),
    Decision(
        "log-softmax far from zero",
        "within rounding of its own expression; where fast math adds maximum and logarithm first (Metal may),"
        " the result of logits around −20000 is rounded as these are, to 2⁻⁹",
        (f"{S}::test_rows_with_infinities_and_nan", "test_faults_values::test_very_negative_rows"),
    ),
    Decision(
        "lowest-finite initial value of a max (highest of a min)",
        "taken as −∞ (+∞): the maximum of a row of −∞ is −∞",
        ("test_faults_values::test_extrema_of_infinities",),
    ),
    Decision(
        "NaN in a bare max, min, argmax, argmin",
        "not promised (TVM's own is order-dependent, and fast math leaves none): other rows are "
        "untouched, an index stays in range",
        (
            "test_faults_values::test_nan_in_a_bare_maximum_touches_no_other_row",
            "test_faults_values::test_nan_in_argmax_stays_in_range",
        ),
    ),
    Decision(
        "ties in argmax, argmin",
        "the lowest index, at every width, packing and vector",
        (f"{S}::test_ties_keep_the_lowest_index",),
    ),
    Decision(
        "argmax of −∞ or +∞ throughout",
        "0, in int32 and int64",
        ("test_faults_values::test_argmax_of_infinities",),
    ),
    Decision(
        "integer sums and products",
        "the PrimFunc's dtype, wrap-around included",
        (f"{S}::test_integers_wrap_in_their_own_dtype", "test_faults_values::test_integer_sums"),
    ),
    Decision(
        "masked softmax",
        "follows its own expression: a NaN that a Select hides does not leak, one that it keeps "
        "reaches the row; a row masked"
        " throughout is NaN where it is filled with −∞ and uniform where it is filled with the lowest number",
        (
            f"{S}::test_a_masked_softmax_follows_its_own_expression",
            f"{S}::test_a_row_masked_by_the_lowest_number_is_uniform",
        ),
    ),
    Decision(
        "weight of a norm before or after the cast",
        "where the PrimFunc has it, held by count of equal bits",
        (f"{S}::test_the_weight_is_applied_before_or_after_the_cast",),
    ),
    Decision(
        "residual in the variance",
        "rounded exactly where an explicit Cast stands; the stored residual is always rounded, half to even",
        (
            f"{S}::test_the_residual_is_rounded_where_a_cast_stands",
            f"{S}::test_narrowing_rounds_half_to_even",
        ),
    ),
    Decision(
        "place of eps",
        "where the PrimFunc has it: inside the root, beside it, or under a maximum",
        (f"{S}::test_eps_stands_where_the_primfunc_has_it",),
    ),
    Decision(
        "quantising to int8",
        "the PrimFunc's nearbyint is half to even, its bounds saturate; NaN is what the backend's "
        "conversion makes of it",
        (f"{S}::test_int8_is_half_to_even_and_saturates",),
    ),
    Decision(
        "quantising to fp8",
        "one conversion from float32, half to even, saturating; declined on Metal",
        (f"{S}::test_fp8_rounds_once_and_saturates",),
    ),
    Decision(
        "width, packing, vector, reuse, splits, row count",
        "change a row's result by no more than rounding; under one mapping a row's bits do not "
        "depend on the rows beside it",
        (
            f"{S}::test_the_mapping_changes_a_row_by_rounding_only",
            f"{S}::test_row_count_and_place_do_not_change_a_row",
        ),
    ),
    Decision(
        "division by a value of the row",
        "once a row, as a product with the reciprocal, only where the reciprocal stays a normal "
        "number: a square root, or the sum"
        " of a softmax. Both backends compile with fast math, which may do the same elsewhere",
        (f"{S}::test_a_sum_of_exponentials_without_their_maximum_is_divided_by",),
    ),
    Decision(
        "offsets, strides, wrong shapes and dtypes",
        "refused by TVM's host function before the launch; what the PrimFunc itself reads as a slice "
        "or transpose is right. Through our pipelines a CUDA tensor that starts where an access would be misaligned is"
        " refused by name, too; TVM's stock pipeline does not ask",
        (
            "test_views::test_views_are_refused_before_the_launch",
            "test_views::test_slices_in_the_primfunc",
            "test_views::test_a_misaligned_start_is_refused_before_the_launch",
            "test_views::test_a_start_that_the_mapping_can_take_is_taken",
            "test_views::test_a_misaligned_start_is_a_fault_of_the_model_and_refused_by_the_adapter",
        ),
    ),
    Decision(
        "an output that is its own input",
        "right for outputs of the input's shape and order, under every mapping. Through our pipelines a part of another"
        " tensor, or a tensor of another size, is refused before the launch on CUDA; what is left is excluded by the"
        " PrimFunc's `noalias`, as in TVM",
        (
            "test_views::test_an_output_may_be_the_input",
            "test_views::test_a_residual_may_take_the_place_of_its_input",
            "test_views::test_outputs_across_other_tensors_are_refused_before_the_launch",
            "test_fuzz::test_random_programs_in_place",
        ),
    ),
    Decision(
        "empty extents",
        "no rows launch nothing; no columns are declined and left to TVM",
        ("test_faults_compile::test_empty_extents", "test_symbolic::test_no_rows_launch_nothing"),
    ),
)
