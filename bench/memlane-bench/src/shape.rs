//! For tests: what a text and a picture consist of.

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
