//! An authority and a certificate that it has signed, made and renewed without anybody's help.
//!
//! The authority lives much longer than the certificate. API servers trust the newest authority and the one before it, so that
//! the old certificate is good until the new one is shown. Time is an argument everywhere, in seconds since 1970.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// Names of the Secret's entries. The first three are those of cert-manager.
const AUTHORITIES: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY_KEY: &str = "ca.key";
const MADE: &str = "made.json";

/// Lives of a certificate in one of its authority: ten years, if the certificate's is 90 days.
const AUTHORITY_LIVES: u64 = 40;
/// A certificate is valid since this long before it was made: clocks differ.
const EARLIER: u64 = 3600;

/// What the certificate is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Names under which the webhook is called. At least one.
    pub names: Vec<String>,
    /// How long a certificate is valid.
    pub life: Duration,
}

/// When things were made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Made {
    authority: u64,
    certificate: u64,
}

/// What the Secret holds, as texts in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Held {
    authorities: String,
    authority_key: String,
    certificate: String,
    key: String,
    made: Made,
}

/// Keys are not for logs.
impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held")
            .field("made", &self.made)
            .finish_non_exhaustive()
    }
}

impl Held {
    /// Reads a Secret's entries. `None`: it holds nothing of ours that is whole.
    pub fn read(entries: &BTreeMap<String, Vec<u8>>) -> Option<Held> {
        let text = |name: &str| String::from_utf8(entries.get(name)?.clone()).ok();
        Some(Held {
            authorities: text(AUTHORITIES)?,
            authority_key: text(AUTHORITY_KEY)?,
            certificate: text(CERTIFICATE)?,
            key: text(KEY)?,
            made: serde_json::from_slice(entries.get(MADE)?).ok()?,
        })
    }

    /// The entries of a Secret.
    pub fn entries(&self) -> BTreeMap<String, Vec<u8>> {
        let made = serde_json::to_string(&self.made).unwrap_or_default();
        [
            (AUTHORITIES, &self.authorities),
            (AUTHORITY_KEY, &self.authority_key),
            (CERTIFICATE, &self.certificate),
            (KEY, &self.key),
            (MADE, &made),
        ]
        .map(|(name, text)| (name.to_owned(), text.clone().into_bytes()))
        .into()
    }

    /// The authorities that API servers are to trust, in PEM.
    pub fn authorities(&self) -> &str {
        &self.authorities
    }

    /// The certificate with its key, for TLS.
    ///
    /// # Errors
    /// If it is none, or the key is another's.
    pub fn certified_key(&self) -> anyhow::Result<CertifiedKey> {
        certified_key(self.certificate.as_bytes(), self.key.as_bytes())
    }

    /// When the certificate ends.
    pub fn until(&self, terms: &Terms) -> u64 {
        self.made.certificate + terms.life.as_secs()
    }

    /// Is the newest authority's key there?
    fn can_sign(&self) -> bool {
        KeyPair::from_pem(&self.authority_key).is_ok()
    }

    /// Is the certificate good for these names at this time, for whoever trusts the authorities?
    fn is_good(&self, terms: &Terms, now: u64) -> bool {
        self.certified_key().is_ok()
            && terms
                .names
                .iter()
                .all(|name| self.verify(name, now).is_ok())
    }

    fn verify(&self, name: &str, now: u64) -> anyhow::Result<()> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(self.authorities.as_bytes()) {
            roots.add(authority?)?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes())?;
        let name = ServerName::try_from(name)?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        verifier.verify_server_cert(&certificate, &[], &name, &[], now)?;
        Ok(())
    }
}

/// A certificate chain and its key, from PEM.
///
/// # Errors
/// If they are none, or do not belong together.
pub fn certified_key(chain: &[u8], key: &[u8]) -> anyhow::Result<CertifiedKey> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<_, _>>()
        .context("the certificate")?;
    ensure!(!chain.is_empty(), "there is no certificate");
    let key = PrivateKeyDer::from_pem_slice(key).context("the key")?;
    let key = ring::sign::any_supported_type(&key).context("the key")?;
    let certified = CertifiedKey::new(chain, key);
    certified
        .keys_match()
        .context("the key is not that of the certificate")?;
    Ok(certified)
}

/// What is to be held from now on, if that is something else than what is.
///
/// # Errors
/// If nothing can be made for these terms.
pub fn renewed(held: Option<&Held>, terms: &Terms, now: u64) -> anyhow::Result<Option<Held>> {
    if terms.names.is_empty() {
        bail!("a certificate needs a name");
    }
    let authority_life = terms.life.as_secs() * AUTHORITY_LIVES;
    match held {
        // Signed by the old authority as long as API servers may not know the new one.
        Some(held) if held.is_good(terms, now) => {
            if !held.can_sign() || is_due(held.made.authority, authority_life, now) {
                return with_next_authority(held, terms, now).map(Some);
            }
            match is_due(held.made.certificate, terms.life.as_secs(), now) {
                true => with_next_certificate(held.clone(), terms, now).map(Some),
                false => Ok(None),
            }
        }
        Some(held) if !is_due(held.made.authority, authority_life, now) => {
            let next = with_next_certificate(held.clone(), terms, now);
            match next {
                Ok(next) if next.is_good(terms, now) => Ok(Some(next)),
                _ => from_nothing(terms, now).map(Some),
            }
        }
        _ => from_nothing(terms, now).map(Some),
    }
}

/// Two thirds of a life are over, or it begins in the future, as after a clock was set back.
fn is_due(made: u64, life: u64, now: u64) -> bool {
    now >= made + life * 2 / 3 || made > now + EARLIER
}

fn from_nothing(terms: &Terms, now: u64) -> anyhow::Result<Held> {
    let key = KeyPair::generate()?;
    let held = Held {
        authorities: authority(terms, now)?.self_signed(&key)?.pem(),
        authority_key: key.serialize_pem(),
        certificate: String::new(),
        key: String::new(),
        made: Made {
            authority: now,
            certificate: now,
        },
    };
    with_next_certificate(held, terms, now)
}

fn with_next_authority(held: &Held, terms: &Terms, now: u64) -> anyhow::Result<Held> {
    let key = KeyPair::generate()?;
    let before = CertificateDer::pem_slice_iter(held.authorities.as_bytes()).next();
    let before = before.context("there is no authority")??;
    let mut next = held.clone();
    next.authorities = authority(terms, now)?.self_signed(&key)?.pem() + &pem(&before);
    next.authority_key = key.serialize_pem();
    next.made.authority = now;
    Ok(next)
}

fn with_next_certificate(mut held: Held, terms: &Terms, now: u64) -> anyhow::Result<Held> {
    let signer = Issuer::new(
        authority(terms, held.made.authority)?,
        KeyPair::from_pem(&held.authority_key)?,
    );
    let key = KeyPair::generate()?;
    let mut certificate = CertificateParams::new(terms.names.clone())?;
    certificate
        .distinguished_name
        .push(DnType::CommonName, "memlane-webhook");
    certificate.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    certificate.use_authority_key_identifier_extension = true;
    (certificate.not_before, certificate.not_after) = valid(now, terms.life.as_secs())?;
    held.certificate = certificate.signed_by(&key, &signer)?.pem();
    held.key = key.serialize_pem();
    held.made.certificate = now;
    Ok(held)
}

/// The authority that was made then: its name tells when, so that two of them are told apart.
fn authority(terms: &Terms, made: u64) -> anyhow::Result<CertificateParams> {
    let mut authority = CertificateParams::default();
    let name = format!("memlane-webhook authority {made}");
    authority.distinguished_name.push(DnType::CommonName, name);
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let life = terms.life.as_secs() * AUTHORITY_LIVES;
    (authority.not_before, authority.not_after) = valid(made, life)?;
    Ok(authority)
}

fn valid(made: u64, life: u64) -> anyhow::Result<(OffsetDateTime, OffsetDateTime)> {
    let at = |seconds: u64| {
        anyhow::Ok(OffsetDateTime::from_unix_timestamp(i64::try_from(
            seconds,
        )?)?)
    };
    Ok((at(made.saturating_sub(EARLIER))?, at(made + life)?))
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let lines: Vec<&str> = (0..text.len())
        .step_by(64)
        .map(|at| &text[at..text.len().min(at + 64)])
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    const NOW: u64 = 2_000_000_000;

    fn terms() -> Terms {
        Terms {
            names: vec!["memlane-webhook.memlane.svc".to_owned()],
            life: Duration::from_secs(90 * DAY),
        }
    }

    fn first() -> Held {
        renewed(None, &terms(), NOW).unwrap().expect("made")
    }

    /// Would an API server that trusts these authorities believe this certificate?
    fn is_believed(authorities: &Held, certificate: &Held, now: u64) -> bool {
        let mut seen = certificate.clone();
        seen.authorities = authorities.authorities.clone();
        seen.is_good(&terms(), now)
    }

    #[test]
    fn a_certificate_is_renewed_when_two_thirds_of_its_life_are_over() {
        let held = first();
        assert!(is_believed(&held, &held, NOW));
        assert_eq!(
            renewed(Some(&held), &terms(), NOW + 59 * DAY).unwrap(),
            None
        );
        let then = NOW + 60 * DAY;
        let next = renewed(Some(&held), &terms(), then)
            .unwrap()
            .expect("renewed");
        assert_eq!(next.authorities, held.authorities);
        assert_ne!(next.certificate, held.certificate);
        assert!(is_believed(&held, &next, then + 89 * DAY));
        assert!(!is_believed(&held, &held, NOW + 91 * DAY));
    }

    #[test]
    fn while_the_authority_is_renewed_the_old_certificate_and_the_new_one_are_believed() {
        let mut held = first();
        let mut now = NOW;
        let mut authorities = 1;
        // Ten years, a week at a time.
        for _ in 0..520 {
            now += 7 * DAY;
            let Some(next) = renewed(Some(&held), &terms(), now).unwrap() else {
                continue;
            };
            // Between the two steps, API servers know either what was held or what is.
            assert!(
                is_believed(&held, &next, now),
                "the new one by who knows the old authorities"
            );
            assert!(
                is_believed(&next, &held, now),
                "the old one by who knows the new authorities"
            );
            authorities += usize::from(next.made.authority != held.made.authority);
            held = next;
        }
        assert_eq!(authorities, 2);
        assert_eq!(held.authorities.matches("BEGIN CERTIFICATE").count(), 2);
    }

    #[test]
    fn what_is_held_comes_back_from_a_secret_and_anything_broken_in_it_is_made_anew() {
        let held = first();
        assert_eq!(Held::read(&held.entries()).as_ref(), Some(&held));
        for name in ["ca.crt", "tls.crt", "tls.key", "ca.key", "made.json"] {
            let mut entries = held.entries();
            entries.remove(name);
            assert_eq!(Held::read(&entries), None, "{name}");
            for broken in [
                &b""[..],
                b"\xff",
                b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            ] {
                entries.insert(name.to_owned(), broken.to_vec());
                let read = Held::read(&entries);
                let Some(next) = renewed(read.as_ref(), &terms(), NOW + 1).unwrap() else {
                    assert_eq!(
                        name, "ca.key",
                        "it is not needed before the next certificate"
                    );
                    continue;
                };
                assert!(next.is_good(&terms(), NOW + 1), "{name}");
            }
        }
    }

    #[test]
    fn an_authority_without_its_key_has_a_successor_before_the_certificate_ends() {
        let mut lost = first();
        lost.authority_key = String::new();
        let next = renewed(Some(&lost), &terms(), NOW + 1)
            .unwrap()
            .expect("made");
        assert!(next.can_sign());
        assert!(is_believed(&next, &lost, NOW + 1));
    }

    #[test]
    fn a_certificate_of_other_names_or_whose_time_is_over_is_replaced_at_once() {
        let held = first();
        let mut other = terms();
        other.names = vec!["elsewhere.example".to_owned()];
        let next = renewed(Some(&held), &other, NOW)
            .unwrap()
            .expect("replaced");
        assert!(next.is_good(&other, NOW));
        let late = NOW + 100 * DAY;
        let next = renewed(Some(&held), &terms(), late)
            .unwrap()
            .expect("replaced");
        assert!(is_believed(&held, &next, late), "by the same authority");
    }
}
