"""Covers docs/record_terminal.py: what a terminal shows, and the errors of its time left."""

from docs.record_terminal import Line, estimates, record


def test_overwritten_states_of_a_line_are_marked(tmp_path):
    command = r"printf 'note\n\rstep 1/4 | 9s left\rstep 4/4 | 0s left\n'; pwd; exit 3"
    lines, code = record(command, tmp_path)
    assert code == 3
    assert [(line.text, line.is_live) for line in lines] == [
        ("note", False),
        ("step 1/4 | 9s left", True),
        ("step 4/4 | 0s left", False),
        (str(tmp_path.resolve()), False),
    ]


def test_live_line_has_the_time_at_which_it_appeared(tmp_path):
    command = r"printf '\rstep 1/4 | 9s left'; sleep 0.5; printf '\r  step 4/4\n'; printf end"
    lines, _ = record(command, tmp_path)
    assert [line.text for line in lines] == ["step 1/4 | 9s left", "  step 4/4", "end"]
    assert lines[1].seconds - lines[0].seconds >= 0.4


def test_estimates_compare_time_left_with_the_true_total():
    texts = {
        1.0: "length-128 1/100 | loss 2.0 | 1h 00m left",  # before the first tenth
        20.0: "length-128 10/100 | loss 2.0 | 1m 40s left",
        60.0: "length-128 50/100 | loss 2.0 | 20s left",
        100.0: "length-128 100/100 | loss 2.0 | 0s left",  # the end itself
    }
    lines = [Line(seconds=s, text=text, is_live=True) for s, text in texts.items()]
    assert estimates(lines, 100.0) == [0.2, -0.2]
