"""Advice as text."""

from collections.abc import Callable

from workbench.records import shorten_paths
from workbench.records.advice import AdviceRecord, FindingRecord, GainRecord
from workbench.render.units import bytes_text, counted_text, flops_text, line_text, seconds_text, share_text


def render_advice_text(advice: AdviceRecord) -> str:
    """Findings as numbered paragraphs: fact, reason, change and gain.

    Example:
        >>> print(render_advice_text(AdviceRecord(name="step", target="here", findings=(), checked=("a", "b"))))
        Advice for step on here: nothing found; 2 rules were checked.
    """
    head = f"Advice for {advice.name} on {advice.target}:"
    if not advice.findings:
        return f"{head} nothing found; {len(advice.checked)} rules were checked."
    bar = f" Predicted seconds: {advice.error_bar}." if advice.error_bar else ""
    lines = [f"{head} {counted_text(len(advice.findings), 'finding')}; {len(advice.checked)} rules were checked.{bar}"]
    for number, finding in enumerate(advice.findings, 1):
        lines += ["", f"{number}. {finding.what}", f"   Why: {finding.why}", f"   Change: {finding.change}"]
        if finding.gain is not None:
            lines.append(f"   Gain: {gain_texts(finding.gain)[-1]}")
            lines += [f"   Price: {price_text(finding)}"] if finding.costs else []
            if finding.run_gain is not None:
                before, after = map(seconds_text, (finding.run_gain.before, finding.run_gain.after))
                lines.append(f"   Measured: {before} -> {after} ({finding.run_gain.how})")
            lines += [f"   Other figures: {figures}"] if (figures := _other_figures(finding)) else []
        else:
            lines.append("   Gain: could not be verified, because the change requires editing the program")
        lines += [f"   Evidence: {'; '.join(finding.evidence)}", *_lines(finding)]
    lines += ["", *(f"Note: {note}" for note in advice.notes)] if advice.notes else []
    return "\n".join(lines)


def amount_writer(quantity: str) -> Callable[[float], str]:
    """Returns the function that formats an amount of a quantity with its unit."""
    writers: dict[str, Callable[[float], str]] = {
        "seconds": seconds_text,
        "measured seconds": seconds_text,
        "FLOPs": flops_text,
        "elementwise FLOPs": flops_text,
        "instructions started": "{:,.0f}".format,
    }
    return writers.get(quantity, bytes_text)


def quantity_text(quantity: str) -> str:
    """The name of a quantity; FLOPs of elementwise operations are listed separately.

    Example:
        >>> quantity_text("FLOPs"), quantity_text("peak bytes")
        ('matrix FLOPs', 'peak bytes')
    """
    return "matrix FLOPs" if quantity == "FLOPs" else quantity


def gain_texts(gain: GainRecord) -> tuple[str, str, str]:
    """The amounts of a gain before and after the change, and the gain in words, including whether it was verified."""
    before, after = map(amount_writer(gain.quantity), (gain.before, gain.after))
    if not gain.verified and before == after:  # unknown, or less than one digit
        return before, after, gain.how
    word = "verified" if gain.verified else "estimated"
    return before, after, f"{quantity_text(gain.quantity)} {before} -> {after} ({word}: {gain.how})"


def price_text(finding: FindingRecord) -> str:
    """The figures that a compiled change makes worse."""
    texts = []
    for cost in finding.costs:
        write = amount_writer(cost.quantity)
        more = f" (+{share_text(cost.after / cost.before - 1, 0)})" if cost.before else ""
        texts.append(f"{quantity_text(cost.quantity)} {write(cost.before)} -> {write(cost.after)}{more}")
    return ", ".join(texts)


def _other_figures(finding: FindingRecord) -> str:
    """The figures of a compiled change that neither improve nor get worse."""
    named = {cost.quantity for cost in finding.costs} | {finding.gain.quantity if finding.gain is not None else ""}
    texts = []
    for figure in finding.compared:
        if figure.quantity in (*named, "measured seconds") or not (figure.before or figure.after):
            continue
        before, after = map(amount_writer(figure.quantity), (figure.before, figure.after))
        change = f"{before} -> {after}" if before != after else f"{before} (unchanged)"
        texts.append(f"{quantity_text(figure.quantity)} {change}")
    return ", ".join(texts)


def _lines(finding: FindingRecord) -> list[str]:
    return [f"   At: {shorten_paths(line_text(source))} in {source.function}" for source in finding.sources[:3]]
