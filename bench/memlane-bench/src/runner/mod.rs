//! What all suites run with: flags, the plan, rounds, processes, and the record of what was seen.
//!
//! | room | what |
//! |---|---|
//! | `options` | the flags of every suite |
//! | `plan` | which rows and systems were asked for |
//! | `turn` | all rounds of a run, one system after the other |
//! | `record` | the figures so far, and what is not there |
//! | `programs`, `proc`, `sys` | where programs are; processes that are pinned, bounded and always ended; kernel calls |
//! | `cables` | network namespaces as machines, with a cable or a router between them |
//! | `sockmap` | a control group in which the kernel short-circuits connections |
//! | `smc` | the kernel's SMC: its sockets, and what it has carried |
//! | `lane` | which way the bytes of a process took |
//! | `parse` | what programs of others print |
//! | `machine` | where the figures were taken |
//! | `strangers` | threads of somebody else, who computes meanwhile |
//! | `progress` | how far a run is |

pub(crate) mod cables;
pub(crate) mod lane;
pub(crate) mod machine;
pub(crate) mod options;
pub(crate) mod parse;
pub(crate) mod plan;
pub(crate) mod proc;
pub(crate) mod programs;
pub(crate) mod progress;
pub(crate) mod record;
pub(crate) mod smc;
pub(crate) mod sockmap;
pub(crate) mod strangers;
pub(crate) mod sys;
pub(crate) mod turn;
