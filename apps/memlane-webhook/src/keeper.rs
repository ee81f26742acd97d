//! Where the certificate lies, and who is told of it.
//!
//! By itself, the webhook keeps authority and certificate in a Secret, and writes the authority into its
//! MutatingWebhookConfiguration. Replicas agree by the Secret's `resourceVersion`: one of them stores, the others read what was
//! stored. Or somebody else, such as cert-manager, puts files into a folder; then the webhook talks to no API server at all.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tracing::{info, warn};

use crate::certificate::{self, Held, Terms};
use crate::server::{Shown, State};

/// How often replicas may get in each other's way before one of them gives up for this time.
const TRIES: usize = 5;
/// The longest time between two looks.
const LONGEST: Duration = Duration::from_secs(30);
/// After something has failed.
const AFTER_A_FAILURE: Duration = Duration::from_secs(2);
/// How often files are looked at.
const FILES: Duration = Duration::from_secs(1);

/// What a replica keeps the certificate with.
#[derive(Clone)]
pub struct Keeper {
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    /// Name of the Secret.
    secret: String,
    /// Name of the MutatingWebhookConfiguration.
    configuration: String,
    terms: Terms,
}

impl Keeper {
    /// A keeper that has done nothing yet.
    pub fn new(
        client: &Client,
        namespace: &str,
        secret: &str,
        configuration: &str,
        terms: Terms,
    ) -> Keeper {
        Keeper {
            secrets: Api::namespaced(client.clone(), namespace),
            configurations: Api::all(client.clone()),
            secret: secret.to_owned(),
            configuration: configuration.to_owned(),
            terms,
        }
    }

    /// Shows a certificate that is good, and has API servers know its authority, for ever.
    pub async fn keep(&self, shown: &Shown, state: &State) {
        let mut now_shown = None;
        loop {
            match self.turn(shown, state, &mut now_shown).await {
                Ok(()) => tokio::time::sleep((self.terms.life / 60).min(LONGEST)).await,
                Err(e) => {
                    warn!(error = format!("{e:#}"), "cannot keep the certificate");
                    tokio::time::sleep(AFTER_A_FAILURE).await;
                }
            }
        }
    }

    async fn turn(
        &self,
        shown: &Shown,
        state: &State,
        now_shown: &mut Option<Held>,
    ) -> anyhow::Result<()> {
        let held = self.held().await?;
        // First those who check, then what they check.
        self.tell_authorities(held.authorities()).await?;
        if now_shown.as_ref() != Some(&held) {
            shown.show(held.certified_key()?);
            let until = held.until(&self.terms);
            state.metrics.certificate_ends(until);
            info!(until, "shows a certificate");
            *now_shown = Some(held);
            state.is_ready.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// What the Secret holds, once it is good.
    async fn held(&self) -> anyhow::Result<Held> {
        for _ in 0..TRIES {
            let there = self.secrets.get_opt(&self.secret).await;
            let there = there.with_context(|| format!("cannot read the secret {}", self.secret))?;
            let held = there.as_ref().and_then(read);
            let next = certificate::renewed(held.as_ref(), &self.terms, now())?;
            match (next, held) {
                (None, Some(held)) => return Ok(held),
                (Some(next), _) if self.store(there, &next).await? => return Ok(next),
                // Another replica has stored something meanwhile.
                _ => {}
            }
        }
        bail!(
            "other replicas change the secret {} all the time",
            self.secret
        )
    }

    /// Stores it in the place of what was there. `false`: something else is there by now.
    async fn store(&self, there: Option<Secret>, next: &Held) -> anyhow::Result<bool> {
        let mut secret = there.clone().unwrap_or_default();
        secret.metadata.name = Some(self.secret.clone());
        let entries = next.entries().into_iter();
        secret.data = Some(
            entries
                .map(|(name, bytes)| (name, ByteString(bytes)))
                .collect(),
        );
        let post = PostParams::default();
        let stored = match there {
            // Its resourceVersion goes with it.
            Some(_) => self.secrets.replace(&self.secret, &post, &secret).await,
            None => self.secrets.create(&post, &secret).await,
        };
        match stored {
            Ok(_) => {
                info!(secret = self.secret, "stored a new certificate");
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(e) => Err(e).with_context(|| format!("cannot store the secret {}", self.secret)),
        }
    }

    /// Has API servers trust these authorities.
    async fn tell_authorities(&self, authorities: &str) -> anyhow::Result<()> {
        let named = || format!("the webhook configuration {}", self.configuration);
        let configuration = self.configurations.get(&self.configuration).await;
        let configuration = configuration.with_context(|| format!("cannot read {}", named()))?;
        let wanted = Some(ByteString(authorities.as_bytes().to_vec()));
        let webhooks = configuration.webhooks.unwrap_or_default();
        if webhooks.iter().all(|w| w.client_config.ca_bundle == wanted) {
            return Ok(());
        }
        let each = webhooks
            .iter()
            .map(|w| json!({"name": w.name, "clientConfig": {"caBundle": wanted}}));
        let patch = Patch::Strategic(json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            // Refused if somebody has changed it since: it is read anew then.
            "metadata": {"resourceVersion": configuration.metadata.resource_version},
            "webhooks": each.collect::<Vec<_>>(),
        }));
        let done = self
            .configurations
            .patch(&self.configuration, &PatchParams::default(), &patch)
            .await;
        done.with_context(|| format!("cannot write the authority into {}", named()))?;
        info!(configuration = self.configuration, "told the authority");
        Ok(())
    }
}

fn read(secret: &Secret) -> Option<Held> {
    let entries = secret.data.as_ref()?.iter();
    Held::read(
        &entries
            .map(|(name, bytes)| (name.clone(), bytes.0.clone()))
            .collect(),
    )
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Shows the certificate of a folder, `tls.crt` and `tls.key`, and the next one when the files change, for ever.
pub async fn keep_files(folder: &Path, shown: &Shown, state: &Arc<State>) {
    let mut seen = None;
    loop {
        let read = files_of(folder).await;
        if let Ok(files) = &read
            && seen.as_ref() == Some(files)
        {
            tokio::time::sleep(FILES).await;
            continue;
        }
        let certified = read.and_then(|files| {
            let certified = certificate::certified_key(&files.0, &files.1);
            seen = Some(files);
            certified
        });
        match certified {
            Ok(certified) => {
                shown.show(certified);
                info!(folder = %folder.display(), "shows a certificate");
                state.is_ready.store(true, Ordering::Release);
            }
            // What was shown before is shown still.
            Err(e) => warn!(error = format!("{e:#}"), folder = %folder.display(), "no certificate"),
        }
        tokio::time::sleep(FILES).await;
    }
}

async fn files_of(folder: &Path) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let read = async |name: &str| {
        let file: PathBuf = folder.join(name);
        let bytes = tokio::fs::read(&file).await;
        bytes.with_context(|| format!("cannot read {}", file.display()))
    };
    Ok((read("tls.crt").await?, read("tls.key").await?))
}
