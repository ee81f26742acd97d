//! A table, in Markdown and in HTML.

use std::fmt::Write as _;

use super::plot::escaped;
use super::plots::capital;

/// Cells are text; each line has as many as the head.
pub(crate) struct Table {
    /// For links.
    pub(crate) id: &'static str,
    pub(crate) title: String,
    pub(crate) head: Vec<String>,
    pub(crate) lines: Vec<Vec<String>>,
    /// Columns of words at the left, and at the right: the others are numbers.
    pub(crate) words: [usize; 2],
}

impl Table {
    /// Leaves out columns that have nothing in any line.
    pub(crate) fn drop_empty_columns(&mut self) {
        for column in (0..self.head.len()).rev() {
            if self.lines.iter().any(|line| !line[column].is_empty()) {
                continue;
            }
            if column >= self.head.len() - self.words[1] {
                self.words[1] -= 1;
            }
            self.head.remove(column);
            for line in &mut self.lines {
                line.remove(column);
            }
        }
    }

    fn is_number(&self, column: usize) -> bool {
        (self.words[0]..self.head.len() - self.words[1]).contains(&column)
    }

    /// With an empty line before it; nothing, if it has no lines. The title is the first cell of the head.
    pub(crate) fn markdown(&self, out: &mut String) {
        if self.lines.is_empty() {
            return;
        }
        let rule = (0..self.head.len()).map(|column| match self.is_number(column) {
            true => "---:|",
            false => "---|",
        });
        let rule: String = rule.collect();
        let _ = writeln!(out, "\n| {} |\n|{rule}", self.head.join(" | "));
        for line in &self.lines {
            // A bar would end the cell.
            let cells: Vec<String> = line.iter().map(|cell| cell.replace('|', "\\|")).collect();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
    }

    /// A section of the page.
    pub(crate) fn html(&self, out: &mut String) {
        if self.lines.is_empty() {
            return;
        }
        let _ = writeln!(
            out,
            "<section id=\"{}\"><h2>{}</h2>\n<div class=\"scroll\"><table><thead><tr>",
            self.id,
            escaped(&capital(&self.title))
        );
        for (column, cell) in self.head.iter().enumerate() {
            let _ = write!(out, "<th{}>{}</th>", self.class(column), escaped(cell));
        }
        out.push_str("</tr></thead><tbody>\n");
        for line in &self.lines {
            out.push_str("<tr>");
            for (column, cell) in line.iter().enumerate() {
                let (name, class) = (if column == 0 { "th" } else { "td" }, self.class(column));
                let _ = write!(out, "<{name}{class}>{}</{name}>", marked(cell));
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table></div></section>\n");
    }

    fn class(&self, column: usize) -> &'static str {
        if self.is_number(column) {
            " class=\"n\""
        } else {
            ""
        }
    }
}

/// Verdicts of aims stand out.
fn marked(cell: &str) -> String {
    let text = escaped(cell);
    let verdict = |end: &str| text.ends_with(end) && text.contains(['≥', '≤']);
    if verdict(" +") {
        format!("<span class=\"met\">{text}</span>")
    } else if verdict(" -") {
        format!("<span class=\"missed\">{text}</span>")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table {
            id: "t",
            title: "things".into(),
            head: ["what", "n", "aim"].map(String::from).to_vec(),
            lines: vec![
                ["a < b", "1", "≥3 +"].map(String::from).to_vec(),
                ["c | d", "2", "≥3 -"].map(String::from).to_vec(),
            ],
            words: [1, 1],
        }
    }

    #[test]
    fn numbers_stand_at_the_right_and_words_at_the_left() {
        let mut text = String::new();
        table().markdown(&mut text);
        assert_eq!(
            text,
            "\n| what | n | aim |\n|---|---:|---|\n| a < b | 1 | ≥3 + |\n| c \\| d | 2 | ≥3 - |\n"
        );
    }

    #[test]
    fn a_page_shows_text_as_text_and_verdicts_as_such() {
        let mut page = String::new();
        table().html(&mut page);
        for told in [
            "<h2>Things</h2>",
            "a &lt; b",
            "<td class=\"n\">1</td>",
            "<span class=\"met\">≥3 +</span>",
            "<span class=\"missed\">≥3 -</span>",
        ] {
            assert!(page.contains(told), "{told}\n{page}");
        }
    }

    #[test]
    fn what_has_no_lines_is_not_there() {
        let empty = Table {
            lines: Vec::new(),
            ..table()
        };
        let mut text = String::new();
        empty.markdown(&mut text);
        empty.html(&mut text);
        assert_eq!(text, "");
    }
}
