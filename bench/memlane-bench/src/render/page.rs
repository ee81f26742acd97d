//! All of a run on one page: tables, plots, the figures themselves. Nothing is fetched and nothing runs; the pointer on
//! a point shows its figures, which browsers do by themselves.

use std::fmt::Write as _;

use super::markdown::facts;
use super::plot::{FAINT, INK, escaped};
use super::table::Table;
use super::{aims, plots, tables};
use crate::figures::Figures;

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
pub(crate) fn of(figures: &Figures<'_>) -> anyhow::Result<String> {
    let mut out = String::new();
    let title = format!("memlane-bench {}", figures.catalogue.suite);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n{}</style>\n</head>\n<body>\n\
         <header><h1>{title}</h1>\n<ul>\n",
        style()
    );
    for fact in facts(figures.run) {
        let _ = writeln!(out, "<li>{}</li>", escaped(&fact));
    }
    let command = escaped(&command(&figures.run.head.command));
    let _ = writeln!(out, "<li><code>{command}</code></li>\n</ul></header>");
    let tables = tables::of(figures);
    contents(&mut out, &tables);
    aims(&mut out, figures);
    pictures(&mut out, &plots::of(figures));
    tables.iter().for_each(|table| table.html(&mut out));
    notes(&mut out, figures);
    // No "</script>" may stand in it, nor anything else that begins like markup.
    let data = serde_json::to_string(figures.run)?.replace('<', "\\u003c");
    let _ = write!(
        out,
        "<script type=\"application/json\" id=\"data\">{data}</script>\n</body>\n</html>\n"
    );
    Ok(out)
}

/// Without the folder that the program happened to be in.
fn command(words: &[String]) -> String {
    let mut words = words.iter().map(String::as_str);
    let program = words.next().unwrap_or("memlane-bench");
    let name = program.rsplit('/').next().unwrap_or(program);
    let all: Vec<&str> = std::iter::once(name).chain(words).collect();
    all.join(" ")
}

fn contents(out: &mut String, tables: &[Table]) {
    out.push_str("<nav><a href=\"#aims\">aims</a><a href=\"#plots\">plots</a>");
    for table in tables {
        let _ = write!(out, "<a href=\"#{0}\">{0}</a>", table.id);
    }
    out.push_str("<a href=\"#notes\">notes</a></nav>\n");
}

/// How many were reached, and each that was not.
fn aims(out: &mut String, figures: &Figures<'_>) {
    let aims::Counts {
        reached,
        missed,
        undecided,
        behind: _,
    } = aims::counts(figures);
    let _ = writeln!(
        out,
        "<section id=\"aims\"><h2>Aims</h2>\n<p><span class=\"met\">{reached} of {} reached</span>, {missed} missed, \
         {undecided} without a verdict (? in the tables)</p></section>",
        reached + missed + undecided
    );
    aims::missed(figures).html(out);
}

fn pictures(out: &mut String, pictures: &[(String, String)]) {
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

fn notes(out: &mut String, figures: &Figures<'_>) {
    out.push_str("<section id=\"notes\"><h2>Notes</h2>\n<ul>\n");
    for line in tables::notes(figures) {
        let _ = writeln!(out, "<li>{}</li>", escaped(&line));
    }
    out.push_str("</ul></section>\n");
}
