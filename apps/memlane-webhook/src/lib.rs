//! The admission webhook that puts memlane's lanes into pods.
//!
//! The API server hands each new pod of a labelled namespace to this webhook, which adds one volume, one mount and two variables
//! to it. What it decides is a pure function, [`review::answer`]; everything else keeps a certificate and answers HTTPS.
//!
//! | module | what |
//! |---|---|
//! | [`review`] | an AdmissionReview, answered |
//! | [`pod`] | what is added to a pod, and which pods are left alone |
//! | [`certificate`] | an authority and a certificate, made and renewed |
//! | [`keeper`] | where the certificate lies: in a Secret of the cluster, or in files |
//! | [`server`] | HTTPS, limits, the end |
//! | [`metrics`] | what is counted |
//!
//! ```
//! use memlane_inject::Edits;
//! use memlane_webhook::review;
//!
//! let refused = review::answer(b"{}", &Edits::of_a_lane_volume()).unwrap_err();
//! assert_eq!(refused.status, 400);
//! ```

pub mod certificate;
pub mod keeper;
pub mod metrics;
pub mod pod;
pub mod review;
pub mod server;
