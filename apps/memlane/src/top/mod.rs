//! `memlane top`: processes and connections by rate, on a terminal.

mod model;
mod screen;
mod terminal;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use memlane_observe::processes::Survey;
use memlane_observe::rings;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use crate::cli::color::Color;
use crate::cli::exit::{Exit, fail};
use crate::cli::out;
use crate::cli::values::duration;
use model::{Model, Sample, Sort, View};
use screen::Look;

/// Most rows that --once prints.
const MOST_ROWS: usize = 2000;

/// Watch processes and connections: rates, lanes, rings, reasons for TCP.
///
/// Keys: q quits, c shows connections, s sorts, / filters, p pauses, ? shows all keys. The numbers are those of
/// memlane ss and memlane stats.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Time between two updates, from 100ms to 1h
    #[arg(short, long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    delay: Duration,
    /// Print one screen, with the rates of one delay, and exit
    #[arg(long)]
    once: bool,
    /// Start with the list of connections
    #[arg(short, long)]
    connections: bool,
    /// Start in this order
    #[arg(short, long, value_name = "BY", default_value = "rate")]
    sort: Sort,
    /// Start with this filter: part of a name, of an address or of a reason, or a process id
    #[arg(
        short,
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    filter: String,
    /// When to use colours
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: Color,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let view = match args.connections {
        true => View::Connections,
        false => View::Processes,
    };
    let mut model = Model::new(view, args.sort, args.filter.clone());
    let delay = args
        .delay
        .clamp(Duration::from_millis(100), Duration::from_secs(3600));
    model.take(look()?);
    if args.once {
        std::thread::sleep(delay);
        model.take(look()?);
        return out::print(&page(&mut model)?);
    }
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        return Err(fail(
            Exit::Unsupported,
            "top needs a terminal; use --once to print one screen",
        ));
    }
    let look = Look {
        colors: args.color.on_stdout().is_on(),
    };
    watch(&mut model, delay, look)
}

fn look() -> anyhow::Result<Sample> {
    let mut survey = Survey::all()?;
    rings::measure(&mut survey);
    Ok(Sample::new(survey))
}

fn watch(model: &mut Model, delay: Duration, colors: Look) -> anyhow::Result<()> {
    let mut terminal = terminal::TerminalGuard::new(colors.colors)?;
    // Rates need two looks: the first ones come soon.
    let mut next = Instant::now() + delay.min(Duration::from_millis(200));
    while !model.over {
        terminal.draw(|frame| screen::draw(frame, model, colors))?;
        match terminal.event(next)? {
            terminal::Event::Press(key) => model.press(key),
            terminal::Event::Other | terminal::Event::Stop => {}
            terminal::Event::End => break,
            terminal::Event::Time => {
                if !model.paused {
                    model.take(look()?);
                }
                next = Instant::now() + delay;
            }
        }
    }
    Ok(())
}

/// The screen as text, without the line of keys: as many rows as there are.
fn page(model: &mut Model) -> anyhow::Result<String> {
    let columns = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    let columns: u16 = columns.unwrap_or(80);
    let rows = model.rows().len().clamp(1, MOST_ROWS);
    let mut terminal = Terminal::new(TestBackend::new(
        columns.clamp(40, 500),
        u16::try_from(rows + 4)?,
    ))?;
    terminal.draw(|frame| screen::draw(frame, model, Look { colors: false }))?;
    Ok(text(&terminal, 1))
}

/// What a test terminal shows, without the last `but` lines.
fn text(terminal: &Terminal<TestBackend>, but: usize) -> String {
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width).max(1);
    let lines = buffer.content.chunks(width).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    let lines: Vec<String> = lines.collect();
    lines[..lines.len().saturating_sub(but)].concat()
}
