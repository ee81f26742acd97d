//! The screen of `memlane top`: two lines on everything, a table, a line of keys. 80 columns are enough.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table};

use super::model::{Fill, Model, Row, View};

/// Keys, and what they do.
const HELP: [(&str, &str); 11] = [
    ("q, Ctrl-C", "quit"),
    ("c, Tab", "connections, or processes"),
    ("s, > and <", "sort by the next, by the one before"),
    ("r", "the other way round"),
    ("/", "show only what has a text in it; Escape: all"),
    ("p, space", "pause"),
    ("arrows, j, k", "scroll; Page Up, Page Down, Home, End"),
    ("? or h", "this"),
    ("", ""),
    ("RING", "how full the rings are, of both directions"),
    ("MEM%", "bytes that went through memory, of all"),
];

/// How it looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) colors: bool,
}

impl Look {
    fn tone(self, color: Color) -> Style {
        match self.colors {
            true => Style::new().fg(color),
            false => Style::new(),
        }
    }
}

/// Draws everything; notes how many rows there was room for.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model, look: Look) {
    let [head, table, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    model.room = usize::from(table.height.saturating_sub(1)).max(1);
    model.hold();
    frame.render_widget(summary(model), head);
    match model.view {
        View::Processes => frame.render_widget(processes(model, look), table),
        View::Connections => frame.render_widget(connections(model, look), table),
    }
    frame.render_widget(keys(model), foot);
    if model.help {
        help(frame);
    }
}

fn summary(model: &Model) -> Paragraph<'static> {
    let totals = &model.totals;
    let first = format!(
        "memlane top: {} processes, {} connections on the memory lane, {} on TCP{}",
        totals.processes,
        totals.memory,
        totals.tcp,
        match model.paused {
            true => "  PAUSED",
            false => "",
        }
    );
    let rates = &totals.rates;
    let second = format!(
        "sent {}/s, received {}/s, {} through memory; {} calls/s{}",
        short(rates.sent),
        short(rates.received),
        percent(rates.memory_percent()),
        short_count(rates.calls),
        match model.unreadable {
            0 => String::new(),
            n => format!("; {n} processes of others not seen"),
        }
    );
    Paragraph::new(vec![Line::from(first), Line::from(second)])
}

fn header(names: &[(&'static str, bool)]) -> TableRow<'static> {
    let cells = names.iter().map(|(name, right)| aligned(*name, *right));
    TableRow::new(cells).style(Style::new().add_modifier(Modifier::REVERSED))
}

fn aligned(text: impl Into<String>, right: bool) -> Cell<'static> {
    let line = Line::from(text.into());
    Cell::from(match right {
        true => line.alignment(Alignment::Right),
        false => line,
    })
}

/// Rows that fit, from the first that is to be seen on.
fn visible(model: &Model) -> Vec<&Row> {
    let rows = model.rows();
    rows.into_iter().skip(model.top).take(model.room).collect()
}

fn processes(model: &Model, look: Look) -> Table<'static> {
    const COLUMNS: [(&str, bool); 10] = [
        ("PID", true),
        ("NAME", false),
        ("MEM", true),
        ("TCP", true),
        ("SENT/s", true),
        ("RECV/s", true),
        ("MEM%", true),
        ("CALL/s", true),
        ("RING", true),
        ("REASON", false),
    ];
    let rows = visible(model).into_iter().map(|row| {
        let cells = [
            row.pid.to_string(),
            row.name.clone(),
            row.open.0.to_string(),
            row.open.1.to_string(),
            short(row.rates.sent),
            short(row.rates.received),
            percent(row.rates.memory_percent()),
            short_count(row.rates.calls),
            ring(row.fill),
            row.reason.clone(),
        ];
        let cells = cells.into_iter().zip(COLUMNS);
        let cells = cells.map(|(text, (_, right))| aligned(text, right));
        TableRow::new(cells).style(tone(row, look))
    });
    let widths = [7, 15, 5, 5, 6, 6, 5, 6, 5].map(Constraint::Length);
    let widths = widths.into_iter().chain([Constraint::Min(9)]);
    Table::new(rows.collect::<Vec<_>>(), widths).header(header(&COLUMNS))
}

fn connections(model: &Model, look: Look) -> Table<'static> {
    const COLUMNS: [(&str, bool); 7] = [
        ("PROCESS", false),
        ("LOCAL", false),
        ("PEER", false),
        ("SENT/s", true),
        ("RECV/s", true),
        ("RING", true),
        ("LANE", false),
    ];
    let rows = visible(model).into_iter().map(|row| {
        let (local, peer) = row.ends.clone().unwrap_or_default();
        let cells = [
            with_end(&row.name, &format!("/{}", row.pid), 14),
            last(&local, 17),
            last(&peer, 17),
            short(row.rates.sent),
            short(row.rates.received),
            ring(row.fill),
            row.reason.clone(),
        ];
        let cells = cells.into_iter().zip(COLUMNS);
        let cells = cells.map(|(text, (_, right))| aligned(text, right));
        TableRow::new(cells).style(tone(row, look))
    });
    let widths = [14, 17, 17, 6, 6, 5].map(Constraint::Length);
    let widths = widths.into_iter().chain([Constraint::Min(9)]);
    Table::new(rows.collect::<Vec<_>>(), widths).header(header(&COLUMNS))
}

fn tone(row: &Row, look: Look) -> Style {
    match (row.fast, row.rates.bytes() > 0) {
        (true, true) => look.tone(Color::Green),
        (false, true) => look.tone(Color::Yellow),
        (_, false) => Style::new(),
    }
}

fn keys(model: &Model) -> Line<'static> {
    if model.typing {
        return Line::from(format!("show only: {}_  (Enter, Escape)", model.filter));
    }
    let order = match model.reversed {
        true => ", reversed",
        false => "",
    };
    let filter = match model.filter.as_str() {
        "" => String::new(),
        text => format!(" {text:?}"),
    };
    Line::from(format!(
        "q quit  c {}  s sort: {}{order}  / filter{filter}  p pause  ? help",
        match model.view {
            View::Processes => "connections",
            View::Connections => "processes",
        },
        model.sort.word(),
    ))
}

fn help(frame: &mut Frame<'_>) {
    let lines = HELP.map(|(key, what)| Line::from(format!(" {key:<14}{what}")));
    let height = u16::try_from(lines.len()).unwrap_or(0) + 2;
    let area = centered(frame.area(), 66, height);
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(" memlane top ");
    frame.render_widget(Paragraph::new(lines.to_vec()).block(block), area);
}

fn centered(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    }
}

fn ring(fill: Fill) -> String {
    match fill.size {
        0 => String::new(),
        _ => percent(fill.percent()),
    }
}

fn percent(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value}%"))
}

/// Bytes in at most five columns, in units of 1024.
fn short(bytes: u64) -> String {
    in_units(bytes, 1024, ["K", "M", "G", "T", "P", "E"])
}

/// Things that are counted, in units of 1000.
fn short_count(count: u64) -> String {
    in_units(count, 1000, ["k", "M", "G", "T", "P", "E"])
}

fn in_units(value: u64, base: u64, units: [&str; 6]) -> String {
    if value < 1000 {
        return value.to_string();
    }
    let (mut tenths, base) = (u128::from(value) * 10 / u128::from(base), u128::from(base));
    let mut unit = 0;
    while tenths >= 10_000 && unit + 1 < units.len() {
        tenths /= base;
        unit += 1;
    }
    match tenths {
        0..100 => format!("{}.{}{}", tenths / 10, tenths % 10, units[unit]),
        _ => format!("{}{}", tenths / 10, units[unit]),
    }
}

/// As much of the end of an address as there is room for: the port is what tells one from another.
fn last(text: &str, width: usize) -> String {
    let len = text.chars().count();
    match len > width {
        true => "<"
            .chars()
            .chain(text.chars().skip(len + 1 - width))
            .collect(),
        false => text.to_owned(),
    }
}

/// As much of the beginning as leaves room for the end.
fn with_end(text: &str, end: &str, width: usize) -> String {
    let room = width.saturating_sub(end.chars().count());
    text.chars().take(room).collect::<String>() + end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_five_columns_whatever_they_are() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "0.9K"),
            (1024, "1.0K"),
            (10 << 10, "10K"),
            (999 << 10, "999K"),
            (1000 << 10, "0.9M"),
            (5 << 30, "5.0G"),
            (u64::MAX, "15E"),
        ] {
            assert_eq!(short(value), text);
        }
        assert_eq!(short_count(12_345), "12k");
        assert_eq!(short_count(1_500_000), "1.5M");
    }

    #[test]
    fn an_address_keeps_its_port_and_a_name_its_number() {
        assert_eq!(last("127.0.0.1:80", 17), "127.0.0.1:80");
        assert_eq!(last("[2001:db8::1:2:3]:40001", 17), "<b8::1:2:3]:40001");
        assert_eq!(with_end("postgres-worker", "/12345", 14), "postgres/12345");
    }
}
