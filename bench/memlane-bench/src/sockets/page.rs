//! All of it as one page: tables, plots, the document itself. Nothing is fetched and nothing runs; the pointer on a point
//! shows its figures, which browsers do by themselves.

use std::fmt::Write as _;

use super::report::Report;
use super::text;
use crate::plot::{FAINT, INK, escaped};

/// Colours follow the reader's choice of light or dark; plots have theirs as attributes, which rules of a page precede.
fn style() -> String {
    format!(
        ":root {{ color-scheme: light dark; --paper: #fff; --ink: {INK}; --faint: #ccc; --met: #00694b; --missed: #b33a00; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --paper: #16181b; --ink: #e4e4e4; --faint: #4a4d52; --met: #35c791; --missed: #ff8a4c; }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 82rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; line-height: 1.2; margin: .3rem 0 .6rem; }}
h2 {{ font-size: 1.15rem; margin: 1.8rem 0 .4rem; }}
nav a {{ margin-right: .9rem; display: inline-block; padding: .25rem 0; }}
a {{ color: inherit; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .85rem; }}
th, td {{ padding: .25rem .55rem; border-bottom: 1px solid var(--faint); text-align: left; white-space: nowrap;
  overflow-wrap: normal; font-weight: normal; vertical-align: top; }}
thead th {{ font-weight: 600; }}
.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
tbody th {{ white-space: normal; min-width: 9rem; max-width: 22rem; }}
@media (min-width: 45rem) {{
  tbody th, thead th:first-child {{ position: sticky; left: 0; background: var(--paper); }}
}}
.met {{ color: var(--met); font-weight: 600; }}
.missed {{ color: var(--missed); font-weight: 600; }}
figure {{ margin: 1.2rem 0; }}
svg {{ display: block; width: 100%; min-width: 44rem; max-width: 60rem; height: auto; }}
svg text {{ fill: var(--ink); }}
svg > rect:first-of-type {{ fill: var(--paper); }}
svg [stroke=\"{INK}\"] {{ stroke: var(--ink); }}
svg [stroke=\"{FAINT}\"] {{ stroke: var(--faint); }}
li {{ margin: .2rem 0; }}
code {{ font-size: .9em; }}
@media print {{ .scroll {{ overflow: visible; }} }}
"
    )
}

/// The whole file.
pub(super) fn of(report: &Report, pictures: &[(String, String)], json: &str) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>memlane-bench sockets</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n{}</style>\n</head>\n<body>\n",
        style()
    );
    head(&mut out, report);
    let tables = text::tables(report);
    contents(&mut out, &tables);
    aims(&mut out, report);
    let (first, rest) = tables.split_at(1);
    first.iter().for_each(|table| table.html(&mut out));
    plots(&mut out, pictures);
    rest.iter().for_each(|table| table.html(&mut out));
    foot(&mut out, report);
    // No "</script>" may stand in it, nor anything else that begins like markup.
    let data = json.replace('<', "\\u003c");
    let _ = write!(
        out,
        "<script type=\"application/json\" id=\"data\">{data}</script>\n</body>\n</html>\n"
    );
    out
}

fn head(out: &mut String, report: &Report) {
    let machine = &report.machine;
    let versions = machine.versions.iter();
    let versions: Vec<String> = versions.map(|(name, is)| format!("{name} {is}")).collect();
    let facts = [
        format!(
            "{} rounds of {} s, upgrade {}",
            report.run.rounds, report.run.seconds, report.upgrade
        ),
        format!(
            "{}, {} CPUs, {} MiB, Linux {}",
            machine.cpu, machine.cores, machine.memory_mib, machine.kernel
        ),
        format!(
            "TCP congestion control {}, clock {}, load when it began {}",
            machine.congestion_control, machine.clocksource, machine.load
        ),
        versions.join(", "),
    ];
    out.push_str("<header><h1>memlane-bench sockets</h1>\n<ul>\n");
    for fact in facts {
        let _ = writeln!(out, "<li>{}</li>", escaped(&fact));
    }
    let command = escaped(&command(report));
    let _ = writeln!(out, "<li><code>{command}</code></li>\n</ul></header>");
}

/// Without the folder that the program happened to be in.
fn command(report: &Report) -> String {
    let mut words = report.run.command.iter();
    let program = words.next().map_or("memlane", String::as_str);
    let name = program.rsplit('/').next().unwrap_or(program);
    let rest = words.map(String::as_str);
    std::iter::once(name)
        .chain(rest)
        .collect::<Vec<_>>()
        .join(" ")
}

fn contents(out: &mut String, tables: &[super::table::Table]) {
    out.push_str("<nav><a href=\"#aims\">aims</a>");
    for table in tables.iter().filter(|table| !table.lines.is_empty()) {
        let _ = write!(out, "<a href=\"#{0}\">{0}</a>", table.id);
    }
    out.push_str("<a href=\"#plots\">plots</a><a href=\"#notes\">notes</a></nav>\n");
}

/// How many were reached, and each that was not.
fn aims(out: &mut String, report: &Report) {
    let programs = report.rows.iter().filter_map(|row| {
        let goal = row.aim.as_ref()?;
        let name = format!("{}, {}, {}", row.about, row.cpus(), row.metric);
        Some((name, goal.shown(), goal.met))
    });
    let native = report.native.rows.iter().flat_map(|row| {
        let goals = row.aims.iter();
        goals.map(|goal| (row.row.clone(), goal.shown(""), goal.met))
    });
    let flat = report.native.flat().map(|(shown, met)| {
        let name = "handover, largest size to smallest".to_owned();
        (name, shown, Some(met))
    });
    let all: Vec<_> = programs.chain(native).chain(flat).collect();
    let reached = all.iter().filter(|(.., met)| *met == Some(true)).count();
    let _ = writeln!(
        out,
        "<section id=\"aims\"><h2>Aims</h2>\n<p><span class=\"met\">{reached} of {} reached</span></p>\n<ul>",
        all.len()
    );
    for (name, shown, met) in all.iter().filter(|(.., met)| *met != Some(true)) {
        let word = if met.is_some() {
            "missed"
        } else {
            "not measured"
        };
        let _ = writeln!(
            out,
            "<li>{}: <span class=\"missed\">{}</span> {word}</li>",
            escaped(name),
            escaped(shown)
        );
    }
    out.push_str("</ul></section>\n");
}

fn plots(out: &mut String, pictures: &[(String, String)]) {
    if pictures.is_empty() {
        return;
    }
    out.push_str("<section id=\"plots\"><h2>Plots</h2>\n");
    for (name, picture) in pictures {
        let name = escaped(name);
        let _ = write!(
            out,
            "<figure data-plot=\"{name}\"><div class=\"scroll\">\n{picture}</div></figure>\n"
        );
    }
    out.push_str("</section>\n");
}

fn foot(out: &mut String, report: &Report) {
    out.push_str("<section id=\"notes\"><h2>Notes</h2>\n<ul>\n");
    for (word, list) in [
        ("Not measured", &report.skipped),
        ("Failed", &report.failed),
    ] {
        for trouble in list {
            let line = format!("{word}: {}: {}", trouble.name, trouble.why);
            let _ = writeln!(out, "<li><strong>{}</strong></li>", escaped(&line));
        }
    }
    for line in text::notes(report) {
        let _ = writeln!(out, "<li>{}</li>", escaped(&line));
    }
    out.push_str("</ul></section>\n");
}

#[cfg(test)]
mod tests {
    use super::super::pictures;
    use super::super::report::tests::sample;

    /// The page, its document, and how many plots it has.
    fn page() -> (String, String, usize) {
        let report = sample();
        let pictures = pictures::of(&report);
        let json = serde_json::to_string(&report).expect("json");
        let page = super::of(&report, &pictures, &json);
        (page, json, pictures.len())
    }

    #[test]
    fn the_document_is_in_it_as_it_is() {
        let (page, json, _) = page();
        let (_, data) = page.split_once("id=\"data\">").expect("the data");
        let (data, rest) = data.split_once("</script>").expect("its end");
        assert!(!data.contains('<') && !rest.contains("<script"));
        let there: serde_json::Value = serde_json::from_str(data).expect("json");
        assert_eq!(there["skipped"][0]["why"], "on <purpose> & so on");
        assert_eq!(data.replace("\\u003c", "<"), json);
    }

    #[test]
    fn nothing_is_fetched_and_nothing_runs() {
        let (page, _, plots) = page();
        assert_eq!(page.matches("<figure ").count(), plots);
        assert_eq!(page.matches("<script").count(), 1);
        for foreign in ["src=", "url(", "@import", "onload", "javascript:"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        for address in page.split("http").skip(1) {
            assert!(
                address.starts_with("://www.w3.org/2000/svg"),
                "{address:.40}"
            );
        }
        assert!(page.contains("on &lt;purpose&gt; &amp; so on"));
        assert!(page.contains("class=\"missed\">≥20 -"));
    }
}
