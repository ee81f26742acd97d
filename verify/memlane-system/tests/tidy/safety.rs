//! Each `unsafe` block and impl says why it is sound.

use super::{code, code_files, mentions, nothing_wrong, without_tests};

/// A SAFETY comment begins at most this many lines above its `unsafe`.
const SAFETY_WITHIN: usize = 6;

/// Line numbers of `unsafe` blocks and impls that do not say why.
fn unexplained(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let explained = |at: usize| {
        let above = &lines[at.saturating_sub(SAFETY_WITHIN + 1)..at];
        above.iter().any(|line| line.contains("// SAFETY:"))
    };
    let is_unsafe = |line| mentions(code(line), "unsafe {") || mentions(code(line), "unsafe impl");
    let code = without_tests(text).into_iter();
    let found = code.filter(|(at, line)| is_unsafe(line) && !explained(*at));
    found.map(|(at, _)| at).collect()
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    let mut wrong = Vec::new();
    for (file, text) in code_files(&[""]) {
        let lines = unexplained(&text).into_iter();
        wrong.extend(lines.map(|line| format!("{file}:{line}")));
    }
    let what = format!("unsafe without a SAFETY comment in the {SAFETY_WITHIN} lines above it");
    nothing_wrong(&wrong, &what);
}

#[test]
fn an_unsafe_block_without_a_reason_would_be_found_out() {
    let said = "// SAFETY: because.\nlet a = unsafe { b() };\n";
    assert!(unexplained(said).is_empty());
    let far = format!("// SAFETY: because.\n{}unsafe {{ b() }}\n", "\n".repeat(6));
    assert_eq!(unexplained(&far), [8]);
    assert_eq!(unexplained("unsafe impl Send for A {}\n"), [1]);
    let tests = "#[cfg(test)]\nmod tests {\n    unsafe { a() }\n}\nunsafe { b() }\n";
    assert_eq!(unexplained(tests), [5]);
}
