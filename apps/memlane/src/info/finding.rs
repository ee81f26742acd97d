//! What a lane uses, and why it is missing.

use serde::Serialize;

/// One thing that a lane uses.
#[derive(Serialize, Debug)]
pub(super) struct Finding {
    pub(super) name: String,
    pub(super) what: String,
    pub(super) here: bool,
    /// True if the lane works without it.
    pub(super) optional: bool,
    /// What was found, in words.
    pub(super) detail: Option<String>,
    pub(super) lacks: Vec<Lack>,
}

/// Why it is missing.
#[derive(Serialize, PartialEq, Eq, Debug)]
pub(super) struct Lack {
    pub(super) why: String,
    /// What to do about it, if `reason` does not say so.
    pub(super) to_do: Option<String>,
}

impl Finding {
    /// The answer for something that the lane needs.
    pub(super) fn new(name: &str, what: &str, found: Result<Option<String>, Lack>) -> Finding {
        let (detail, lacks) = match found {
            Ok(detail) => (detail, Vec::new()),
            Err(lack) => (None, vec![lack]),
        };
        Finding {
            name: name.into(),
            what: what.into(),
            here: lacks.is_empty(),
            optional: false,
            detail,
            lacks,
        }
    }

    pub(super) fn optional(mut self) -> Finding {
        self.optional = true;
        self
    }
}

/// A reason, and what to do about it.
pub(super) fn lack(why: impl ToString, to_do: &str) -> Lack {
    Lack {
        why: why.to_string(),
        to_do: Some(to_do.to_owned()),
    }
}

/// A reason that itself says what to do.
pub(super) fn said(why: impl ToString) -> Lack {
    Lack {
        why: why.to_string(),
        to_do: None,
    }
}
