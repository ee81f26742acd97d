//! For tests: runs of known figures, and what a text and a picture consist of.

use std::collections::BTreeMap;

use crate::sample::{Head, Machine, Run, SCHEMA, Sample};

/// A machine that is not busy.
pub(crate) fn machine() -> Machine {
    Machine {
        kernel: "6.1".into(),
        cpu: "a <CPU>".into(),
        cores: 2,
        memory_mib: 1024,
        congestion_control: "cubic".into(),
        load: "0.00".into(),
        clocksource: "tsc".into(),
        versions: BTreeMap::new(),
    }
}

/// A run of a suite with these figures: row, system, metric, unit, and a value for each round.
pub(crate) fn run(suite: &str, figures: &[(&str, &str, &str, &str, &[f64])]) -> Run {
    let mut run = Run {
        head: Head {
            schema: SCHEMA.into(),
            suite: suite.into(),
            created_unix: 1,
            command: vec!["memlane-bench".into(), "run".into(), suite.into()],
            quick: true,
            rest: false,
            stranger: false,
            rounds: 2,
            more_rounds: 0,
            seconds: 0.5,
            settings: BTreeMap::new(),
            machine: machine(),
            note: String::new(),
        },
        samples: Vec::new(),
        absent: Vec::new(),
    };
    for (row, system, metric, unit, values) in figures {
        for (round, value) in values.iter().enumerate() {
            run.samples.push(Sample {
                suite: suite.into(),
                row: (*row).into(),
                system: (*system).into(),
                metric: (*metric).into(),
                unit: (*unit).into(),
                round,
                value: *value,
            });
        }
    }
    run
}

/// How many marks of a kind a picture has: bars (`rect`), points (`circle`).
pub(crate) fn marks(picture: &str, kind: &str) -> usize {
    let parsed = roxmltree::Document::parse(picture).expect("XML");
    let nodes = parsed.descendants();
    nodes
        .filter(|node| node.tag_name().name() == kind)
        .filter(|node| kind != "rect" || node.attribute("class") == Some("bar"))
        .count()
}

/// How many Markdown tables a text has; each line of one has as many cells as its head.
pub(crate) fn even_tables(text: &str) -> usize {
    let tables = text.split("\n\n").map(|part| {
        let lines = part.lines().filter(|line| line.starts_with('|'));
        lines.collect::<Vec<&str>>()
    });
    let tables = tables.filter(|lines| !lines.is_empty());
    let cells = |line: &str| line.matches('|').count();
    let looked = tables.inspect(|lines| {
        for line in lines {
            assert_eq!(cells(line), cells(lines[0]), "{line}\n{}", lines[0]);
        }
    });
    looked.count()
}
