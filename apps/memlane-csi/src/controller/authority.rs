//! Who may ask a store: TLS with certificates at both ends.
//!
//! A certificate that opens volumes for a node must not be enough to delete them, so a controller's names the stores that it
//! may ask: a URI among its alternative names, `memlane:store/NAME`; a star at the end stands for any rest.

use tonic::{Request, Status};

/// What comes before a store's name in a certificate's URI.
const STORE: &str = "memlane:store/";

/// Lets a request pass whose sender's certificate names this store.
///
/// # Errors
/// `PermissionDenied`.
pub fn may_ask(store: &str, request: Request<()>) -> Result<Request<()>, Status> {
    let certificates = request.peer_certs();
    let first = certificates.as_ref().and_then(|all| all.first());
    match first.is_some_and(|certificate| names(certificate, store)) {
        true => Ok(request),
        false => Err(Status::permission_denied(format!(
            "the certificate does not name the store: {STORE}{store} is needed among its alternative names"
        ))),
    }
}

fn names(certificate: &tonic::transport::CertificateDer<'_>, store: &str) -> bool {
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else {
        return false;
    };
    let mut uris = parsed.valid_uri_names();
    uris.any(|uri| {
        uri.strip_prefix(STORE)
            .is_some_and(|name| stands_for(name, store))
    })
}

/// Letter by letter, but for a star at the end.
fn stands_for(certified: &str, store: &str) -> bool {
    match certified.strip_suffix('*') {
        Some(beginning) => store.starts_with(beginning),
        None => certified == store,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_only_counts_at_the_end() {
        for (certified, store, yes) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*", "ab", true),
            ("*b", "ab", false),
            ("", "a", false),
        ] {
            assert_eq!(stands_for(certified, store), yes, "{certified} {store}");
        }
    }

    #[test]
    fn without_a_certificate_nobody_may_ask() {
        let error = may_ask("a", Request::new(())).expect_err("nobody");
        assert_eq!(error.code(), tonic::Code::PermissionDenied);
    }
}
