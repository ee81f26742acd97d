//! memif by its document (docs/formats/memif.md).
