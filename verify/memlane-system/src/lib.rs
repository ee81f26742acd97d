//! Black-box tests of memlane. Nothing here knows how the lane works: programs
//! are run plain (the oracle) and under memlane, and must have seen the same.
//!
//! - [`harness`]: finding the built files, running a command in a [`harness::Mode`]
//!   with a time limit, temporary directories, free ports.
//! - [`cases`]: the hard-case programs of `cases/*.c` and the comparison of what they saw.
//! - [`musl`]: the same programs, linked with musl.
//! - [`go`]: programs in Go that are built from their modules.
//! - [`cluster`]: a control plane of Kubernetes, and a node.
//! - [`callgrind`]: instructions that a program executes, by source file.
//! - [`real`]: stock programs (nginx, redis, …).
//! - [`faulty`]: the preload library with fault points, and programs that are to survive a peer with it.
//! - [`kills`]: what such a program must see when the peer dies or stops at a step.
//! - [`crowd`]: very many connections, or processes, told step by step what to do.
//! - [`pair`]: two programs with one connection, told step by step what to do.
//! - [`blocks`]: two machines, cables between them, a volume of the one mapped on the other.
//! - [`devmem`]: `memlane nc`, whoever is at its other end.
//! - [`documents`]: what is printed as JSON, by shape; pages for Prometheus, by their grammar.
//! - [`packets`]: two machines whose only cable is the packet lane.
//! - [`verbs`]: `memlane net`, verb by verb.

pub mod blocks;
pub mod callgrind;
pub mod cases;
pub mod cluster;
pub mod containers;
pub mod crowd;
pub mod csi;
pub mod devmem;
pub mod documents;
pub mod exceptions;
pub mod faulty;
pub mod go;
pub mod harness;
pub mod kills;
pub mod musl;
pub mod packets;
pub mod pair;
pub mod real;
pub mod verbs;
