//! The loader's list of libraries, of which memlane's is the last one.

/// Our library's file name, wherever it lies.
const LIBRARY: &str = "libmemlane_preload.so";

/// What becomes of a list when a library is added to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Joined {
    /// This is the new list.
    Changed(String),
    /// The library is in it.
    Same,
    /// It names a library of memlane's at another place, and two of them are one too many.
    Other,
}

/// Adds `library` to the list `theirs`, which may be empty. What is in it stays, and comes first.
pub fn join(theirs: &str, library: &str) -> Joined {
    // The loader takes both signs.
    if theirs.split([':', ' ']).any(|path| path == library) {
        return Joined::Same;
    }
    if theirs.contains(LIBRARY) {
        return Joined::Other;
    }
    Joined::Changed(match theirs {
        "" => library.to_owned(),
        theirs => format!("{theirs}:{library}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_preloaded_stays_and_comes_first() {
        let ours = "/opt/memlane/$LIB/libmemlane_preload.so";
        let changed = |list: &str| Joined::Changed(list.to_owned());
        assert_eq!(join("", ours), changed(ours));
        let both = format!("/a.so:/b.so:{ours}");
        assert_eq!(join("/a.so:/b.so", ours), changed(&both));
        assert_eq!(join(&both, ours), Joined::Same);
        assert_eq!(join(&format!("{ours} /a.so"), ours), Joined::Same);
        assert_eq!(join("/usr/lib/libmemlane_preload.so", ours), Joined::Other);
    }
}
