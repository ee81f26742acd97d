//! An emulated machine that a suite measures in: the same program runs in it, as the half that measures.
//!
//! | room | what |
//! |---|---|
//! | `machine` | the guest in QEMU, and its clock, which counts instructions |
//! | `inside` | the half in the guest: takes requests from its console, and answers there |

pub(crate) mod inside;
pub(in crate::suites) mod machine;

use serde::{Deserialize, Serialize};

use super::{counted, kernels};

/// What a guest is asked to measure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::suites) enum Request {
    /// Rows of programs over sockets.
    Sockets(counted::inside::Request),
    /// Rows of volumes over a network.
    Volumes(kernels::inside::Request),
}

impl Request {
    /// How many rows are asked for.
    fn rows(&self) -> usize {
        match self {
            Request::Sockets(request) => request.rows.len(),
            Request::Volumes(request) => request.rows.len(),
        }
    }
}

/// A figure on its way: metric, unit, value.
pub(in crate::suites) type Told = (String, String, f64);

/// What is answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    /// Requests are taken.
    Ready,
    /// A row's figures.
    Row(String, Vec<Told>),
    /// A request is done; what went wrong, if something did.
    Done(Option<String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_over_the_console_is_read_as_it_was_written() {
        let figures = vec![("p50".to_owned(), "µs".to_owned(), 4.5)];
        for answer in [
            Answer::Ready,
            Answer::Row("nginx-1".into(), figures),
            Answer::Done(None),
            Answer::Done(Some("no \"such\" thing".into())),
        ] {
            let text = serde_json::to_string(&answer).expect("text");
            assert!(!text.contains('\n'));
            assert_eq!(
                serde_json::from_str::<Answer>(&text).expect("an answer"),
                answer
            );
        }
        let request = Request::Volumes(kernels::inside::Request {
            system: "rnbd".into(),
            paths: 2,
            rows: vec!["gap-cut-2".into()],
        });
        let text = serde_json::to_string(&request).expect("text");
        let read: Request = serde_json::from_str(&text).expect("a request");
        assert_eq!((&read, read.rows()), (&request, 1));
    }
}
