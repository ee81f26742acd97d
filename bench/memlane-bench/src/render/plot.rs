//! Pictures of figures, as SVG: bars with their spread, and lines over a number. One place for all benches.
//!
//! Text is measured by guess (no fonts are looked at); a reader's browser decides how it looks. The page of
//! `bench sockets` colours [`INK`], [`FAINT`] and the ground by its own rules.

use std::fmt::Write as _;

use crate::spread::{Spread, short};

/// Whose figures stand out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whose {
    /// Measured, memlane's.
    Ours,
    /// Measured, others'.
    Theirs,
    /// Taken from what others published.
    Published,
}

impl Whose {
    /// Of what was measured.
    pub(crate) fn of(ours: bool) -> Whose {
        if ours { Whose::Ours } else { Whose::Theirs }
    }

    /// How a line looks.
    fn stroke(self) -> &'static str {
        match self {
            Whose::Ours => r#"stroke-width="3""#,
            Whose::Theirs => r#"stroke-width="1.5""#,
            Whose::Published => r#"stroke-width="1.5" stroke-dasharray="5 4""#,
        }
    }
}

/// One bar: the median, and a thin line from the lowest to the highest.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: Spread,
    pub(crate) whose: Whose,
    /// A tick where it should end, at least or at most.
    pub(crate) aim: Option<f64>,
}

/// Bars that share a scale, which begins at zero.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    /// Of all its bars.
    pub(crate) unit: String,
    pub(crate) bars: Vec<Bar>,
}

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) whose: Whose,
    /// From left to right.
    pub(crate) points: Vec<(f64, Spread)>,
}

/// What surrounds lines.
#[derive(Clone, Debug)]
pub(crate) struct Axes {
    pub(crate) title: String,
    pub(crate) across: String,
    pub(crate) up: String,
    /// Both scales in powers of ten, or both from zero.
    pub(crate) powers: bool,
}

const WIDTH: f64 = 900.0;
const NAMES: f64 = 330.0;
const VALUES: f64 = 130.0;
const BAR: f64 = 18.0;
const MARGIN: f64 = 20.0;
pub(crate) const INK: &str = "#222";
pub(crate) const FAINT: &str = "#bbb";
/// Colours that the colour-blind can tell apart (Okabe and Ito's).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555",
];

/// Panels below each other.
pub(crate) fn bars(title: &str, foot: &str, panels: &[Panel]) -> String {
    let mut out = String::new();
    let mut top = 2.0 * MARGIN;
    text(&mut out, [MARGIN, top], "start", 18, title);
    for panel in panels.iter().filter(|panel| !panel.bars.is_empty()) {
        top += 2.0 * MARGIN;
        let title = format!("{} ({})", panel.title, panel.unit);
        text(&mut out, [MARGIN, top], "start", 14, &title);
        top += MARGIN / 2.0;
        top = draw_bars(&mut out, panel, top);
    }
    top += 1.5 * MARGIN;
    text(&mut out, [MARGIN, top], "start", 11, foot);
    page(top + MARGIN, &out)
}

/// Draws the bars; where the last one ends.
fn draw_bars(out: &mut String, panel: &Panel, top: f64) -> f64 {
    let highest = panel.bars.iter().map(|bar| {
        let aim = bar.aim.unwrap_or(0.0);
        finite(bar.value.max).max(finite(aim))
    });
    let scale = (WIDTH - NAMES - VALUES - MARGIN) / highest.fold(f64::MIN_POSITIVE, f64::max);
    let x = |value: f64| NAMES + finite(value) * scale;
    let mut y = top;
    for bar in &panel.bars {
        let colour = match bar.whose {
            Whose::Ours => COLOURS[0],
            Whose::Theirs => COLOURS[6],
            Whose::Published => COLOURS[5],
        };
        let middle = y + BAR / 2.0;
        text(out, [NAMES - 8.0, middle + 4.0], "end", 12, &bar.name);
        let width = (x(bar.value.median) - NAMES).max(0.5);
        let height = BAR - 5.0;
        let _ = writeln!(
            out,
            r#"<rect class="bar" x="{NAMES:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"><title>{}: {}</title></rect>"#,
            y + 2.5,
            escaped(&bar.name),
            bar.value.shown()
        );
        line(
            out,
            [x(bar.value.min), middle, x(bar.value.max), middle],
            INK,
            1.5,
        );
        if let Some(aim) = bar.aim {
            line(
                out,
                [x(aim), y + 1.0, x(aim), y + BAR - 1.0],
                COLOURS[1],
                2.5,
            );
        }
        let end = x(bar.value.max.max(bar.aim.unwrap_or(0.0))) + 6.0;
        let told = short(bar.value.median);
        text(out, [end, middle + 4.0], "start", 12, &told);
        y += BAR;
    }
    y
}

/// One scale: from values to places.
struct Scale {
    low: f64,
    high: f64,
    powers: bool,
    from: f64,
    to: f64,
}

impl Scale {
    fn new(values: impl Iterator<Item = f64>, powers: bool, [from, to]: [f64; 2]) -> Scale {
        let (low, high) = values.fold((f64::INFINITY, 0.0f64), |(low, high), value| {
            let low = if value > 0.0 { low.min(value) } else { low };
            (low, high.max(value))
        });
        let (low, high) = match powers {
            false => (0.0, nice(high)),
            true if !low.is_finite() => (1.0, 10.0),
            true => {
                let low = 10f64.powf(low.log10().floor());
                (low, 10f64.powf(high.log10().ceil()).max(low * 10.0))
            }
        };
        Scale {
            low,
            high,
            powers,
            from,
            to,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let value = finite(value);
        let share = match self.powers {
            false => value / self.high,
            // What is zero lies at the lower end.
            true => (value.max(self.low) / self.low).log10() / (self.high / self.low).log10(),
        };
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.powers {
            return (0..=4).map(|n| self.high * f64::from(n) / 4.0).collect();
        }
        let powers = std::iter::successors(Some(self.low), |value| Some(value * 10.0));
        let top = self.high * 1.001;
        powers.take_while(|value| *value <= top).collect()
    }
}

/// Lines over a number.
pub(crate) fn lines(axes: &Axes, series: &[Series]) -> String {
    const HEIGHT: f64 = 460.0;
    let (left, right, top, bottom) = (80.0, WIDTH - 290.0, 60.0, HEIGHT - 60.0);
    let points = || series.iter().flat_map(|series| &series.points);
    let across = points().map(|point| finite(point.0));
    let across = Scale::new(across, axes.powers, [left, right]);
    let ends = points().flat_map(|point| [finite(point.1.min), finite(point.1.max)]);
    let up = Scale::new(ends, axes.powers, [bottom, top]);

    let mut out = String::new();
    text(&mut out, [MARGIN, 35.0], "start", 18, &axes.title);
    text(&mut out, [left, top - 8.0], "start", 12, &axes.up);
    text(&mut out, [right, bottom + 40.0], "end", 12, &axes.across);
    for value in up.ticks() {
        let y = up.place(value);
        line(&mut out, [left, y, right, y], FAINT, 0.7);
        text(&mut out, [left - 6.0, y + 4.0], "end", 11, &tick(value));
    }
    for value in across.ticks() {
        let at = [across.place(value), bottom + 18.0];
        text(&mut out, at, "middle", 11, &tick(value));
    }
    for (index, series) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        draw_line(&mut out, series, colour, [&across, &up]);
        let beside = top + 20.0 * index as f64;
        let (from, to) = (right + 20.0, right + 44.0);
        let _ = writeln!(
            out,
            r#"<path d="M{from:.1} {beside:.1}H{to:.1}" stroke="{colour}" {}/>"#,
            series.whose.stroke()
        );
        let at = [right + 50.0, beside + 4.0];
        text(&mut out, at, "start", 12, &series.name);
    }
    let legend = top + 20.0 * series.len() as f64;
    page(HEIGHT.max(legend + MARGIN), &out)
}

fn draw_line(out: &mut String, series: &Series, colour: &str, [x, y]: [&Scale; 2]) {
    let at = |(across, value): &(f64, Spread)| {
        format!("{:.1},{:.1}", x.place(*across), y.place(value.median))
    };
    let path: Vec<String> = series.points.iter().map(at).collect();
    let _ = writeln!(
        out,
        r#"<polyline points="{}" fill="none" stroke="{colour}" {}/>"#,
        path.join(" "),
        series.whose.stroke()
    );
    for (across, value) in &series.points {
        let (place, median) = (x.place(*across), y.place(value.median));
        let spread = [place, y.place(value.min), place, y.place(value.max)];
        line(out, spread, colour, 1.0);
        // A browser shows the title of what the pointer is at.
        let _ = writeln!(
            out,
            r#"<circle cx="{place:.1}" cy="{median:.1}" r="3" fill="{colour}"><title>{}: {}, {}</title></circle>"#,
            escaped(&series.name),
            tick(*across),
            value.shown()
        );
    }
}

/// The next of 1, 2, 2.5, 4, 5, 8 and their tens: four steps of it are short numbers.
fn nice(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let ten = 10f64.powf(most.log10().floor());
    let steps = [1.0, 2.0, 2.5, 4.0, 5.0, 6.0, 8.0, 10.0];
    let fits = steps.iter().find(|step| *step * ten >= most);
    fits.unwrap_or(&10.0) * ten
}

/// On a scale.
fn tick(value: f64) -> String {
    match value {
        v if v < 9_995.0 && v.fract() == 0.0 => format!("{v:.0}"),
        v if v < 0.000_95 => format!("{v:.0e}"),
        v => short(v),
    }
}

/// A picture has no place for what is no number.
fn finite(value: f64) -> f64 {
    if value.is_finite() {
        value.max(0.0)
    } else {
        0.0
    }
}

fn line(out: &mut String, [x1, y1, x2, y2]: [f64; 4], colour: &str, width: f64) {
    let _ = writeln!(
        out,
        r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="{width}"/>"#
    );
}

fn text(out: &mut String, [x, y]: [f64; 2], anchor: &str, size: u32, text: &str) {
    let _ = writeln!(
        out,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" fill="{INK}">{}</text>"#,
        escaped(text)
    );
}

pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // Not even as a reference may these stand in XML 1.0.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

fn page(height: f64, content: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH:.0} {height:.0}\" font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{content}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[f64]) -> Spread {
        Spread::of(values).expect("values")
    }

    fn bar(name: &str, values: &[f64], aim: Option<f64>) -> Bar {
        Bar {
            name: name.into(),
            value: spread(values),
            whose: Whose::Ours,
            aim,
        }
    }

    /// How many elements of that name, and class; that it can be parsed at all is the point.
    fn count(picture: &str, name: &str, class: Option<&str>) -> usize {
        let parsed = roxmltree::Document::parse(picture);
        let parsed = parsed.unwrap_or_else(|error| panic!("{error}\n{picture}"));
        let same = |node: &roxmltree::Node<'_, '_>| {
            node.has_tag_name(("http://www.w3.org/2000/svg", name))
                && (class.is_none() || node.attribute("class") == class)
        };
        parsed.descendants().filter(same).count()
    }

    /// Numbers of an attribute, of all elements of that name.
    fn numbers(picture: &str, name: &str, attribute: &str) -> Vec<f64> {
        let parsed = roxmltree::Document::parse(picture).expect("XML");
        let nodes = parsed.descendants().filter(|n| n.tag_name().name() == name);
        nodes
            .filter_map(|node| node.attribute(attribute)?.parse().ok())
            .collect()
    }

    #[test]
    fn each_bar_is_a_bar_as_long_as_its_median_whatever_its_name() {
        let panel = Panel {
            title: "a < b & \"c\" \u{1}".into(),
            unit: "1/s".into(),
            bars: vec![
                bar("<memlane>", &[40.0, 50.0, 60.0], Some(30.0)),
                bar("peer]]>", &[25.0], None),
            ],
        };
        let empty = Panel {
            title: "nothing".into(),
            unit: String::new(),
            bars: Vec::new(),
        };
        let picture = bars("title", "foot", &[panel, empty]);
        assert_eq!(count(&picture, "rect", Some("bar")), 2);
        let widths = numbers(&picture, "rect", "width");
        let [first, second] = widths[..] else {
            panic!("{widths:?}")
        };
        assert!((first / second - 2.0).abs() < 0.02, "{widths:?}");
        assert!(!picture.contains("nothing"), "a panel without bars");
        // Each bar's spread, and the one aim.
        assert_eq!(count(&picture, "line", None), 3);
    }

    #[test]
    fn a_line_has_a_point_for_each_value_and_higher_values_are_higher() {
        let series = |name: &str, values: &[f64]| Series {
            name: name.into(),
            whose: Whose::Theirs,
            points: (1u32..)
                .zip(values)
                .map(|(x, value)| (f64::from(x), spread(&[*value])))
                .collect(),
        };
        let axes = Axes {
            title: "t".into(),
            across: "jobs".into(),
            up: "1/s".into(),
            powers: false,
        };
        let all = [series("a", &[1.0, 2.0, 3.0]), series("b", &[5.0, 4.0])];
        let picture = lines(&axes, &all);
        assert_eq!(count(&picture, "circle", None), 5);
        assert_eq!(count(&picture, "polyline", None), 2);
        let heights = numbers(&picture, "circle", "cy");
        assert!(
            heights[0] > heights[1] && heights[3] < heights[4],
            "{heights:?}"
        );
        let across = numbers(&picture, "circle", "cx");
        assert!(
            across[0] < across[1] && across[0] == across[3],
            "{across:?}"
        );
    }

    #[test]
    fn what_is_no_number_or_not_there_still_gives_a_picture() {
        let panel = Panel {
            title: "t".into(),
            unit: "u".into(),
            bars: vec![
                bar("nan", &[f64::NAN], None),
                bar("inf", &[f64::INFINITY], None),
            ],
        };
        let picture = bars("t", "", &[panel]);
        assert_eq!(count(&picture, "rect", Some("bar")), 2);
        let widths = numbers(&picture, "rect", "width");
        assert!(widths.iter().all(|width| width.is_finite()), "{widths:?}");
        let axes = Axes {
            title: String::new(),
            across: String::new(),
            up: String::new(),
            powers: true,
        };
        assert_eq!(count(&lines(&axes, &[]), "circle", None), 0);
    }

    #[test]
    fn powers_of_ten_are_equally_far_apart_and_zero_has_a_place() {
        let scale = Scale::new([3.0, 0.0, 2000.0].into_iter(), true, [100.0, 500.0]);
        assert_eq!(scale.ticks().len(), 5);
        let places: Vec<f64> = scale.ticks().iter().map(|v| scale.place(*v)).collect();
        for pair in places.windows(2) {
            assert!((pair[1] - pair[0] - 100.0).abs() < 1e-6, "{places:?}");
        }
        assert_eq!(scale.place(0.0), 100.0);
        assert_eq!(
            [tick(0.00001), tick(0.25), tick(1e6)],
            ["1e-5", "0.25", "1.00M"]
        );
        assert_eq!(scale.place(f64::NAN), 100.0);
        let one = Scale::new([7.0].into_iter(), true, [0.0, 1.0]);
        assert!(one.place(7.0) > 0.0 && one.place(7.0) < 1.0);
    }

    #[test]
    fn scales_end_at_round_numbers_that_are_high_enough() {
        for (most, end) in [
            (0.0, 1.0),
            (64.0, 80.0),
            (100.0, 100.0),
            (130_000.0, 200_000.0),
        ] {
            assert_eq!(nice(most), end);
        }
        assert!(nice(f64::MAX / 4.0) > 1.0);
    }
}
