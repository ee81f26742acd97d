//! Where large statics lie.

/// Defines a static that is large, begins as zeros, and of which most processes use little or nothing. It lies behind all
/// others, which then share a few pages: each page that a process writes costs it a page fault, and another one after a fork.
///
/// The preload library's `far.ld` gives the section its place. In other programs, the linker puts it among the other zeros.
macro_rules! far {
    ($(#[$about:meta])* $sees:vis static $name:ident: $kind:ty = $zeros:expr;) => {
        $(#[$about])*
        // SAFETY: a section of zeros that nothing else is in; the compiler refuses a static that does not begin as zeros.
        #[unsafe(link_section = ".bss.far")]
        $sees static $name: $kind = $zeros;
    };
}
pub(crate) use far;
