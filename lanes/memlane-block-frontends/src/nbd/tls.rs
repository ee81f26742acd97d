//! TLS for NBD: X.509 certificates from PEM files, as QEMU's `tls-creds-x509` names them, so that one folder serves
//! both. (There are no pre-shared keys: rustls has none.)

use memlane_core::access::SharedBytes;
use memlane_transport::io::tls::TlsFiles;
use rustls::ServerConnection;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The server's certificate, and the authority for clients.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// Our certificate, with those between it and the authority: PEM.
    pub certificate: PathBuf,
    /// Its key: PEM.
    pub key: PathBuf,
    /// The authorities of clients' certificates: PEM. `None`: any client is served.
    pub client_authority: Option<PathBuf>,
    /// Certificates that are not believed any more: PEM.
    pub revoked: Option<PathBuf>,
    /// Clients without TLS get no information.
    pub required: bool,
}

impl TlsConfig {
    /// From a folder with `server-cert.pem`, `server-key.pem`, `ca-cert.pem` and perhaps `ca-crl.pem`: clients
    /// need a certificate of that authority, and TLS.
    #[must_use]
    pub fn folder(folder: &Path) -> TlsConfig {
        let revoked = folder.join("ca-crl.pem");
        TlsConfig {
            certificate: folder.join("server-cert.pem"),
            key: folder.join("server-key.pem"),
            client_authority: Some(folder.join("ca-cert.pem")),
            revoked: revoked.exists().then_some(revoked),
            required: true,
        }
    }

    pub(super) fn load(&self) -> io::Result<Arc<rustls::ServerConfig>> {
        let files = TlsFiles {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            authority: self.client_authority.clone(),
            revoked: self.revoked.clone(),
        };
        files.server(rustls::ALL_VERSIONS).map(Arc::new)
    }
}

/// Bytes that are encrypted at a time.
const PLAIN: usize = 16 * 1024;

/// A socket with TLS on it.
pub(super) struct TlsStream {
    /// Only for `Read` and `Write`; may be an AF_UNIX socket as well.
    socket: TcpStream,
    tls: ServerConnection,
    scratch: Vec<u8>,
}

impl TlsStream {
    pub(super) fn new(fd: OwnedFd, config: &Arc<rustls::ServerConfig>) -> io::Result<TlsStream> {
        let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(4 * PLAIN));
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(TlsStream {
            socket: TcpStream::from(fd),
            tls,
            scratch: vec![0; PLAIN],
        })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// One turn of the handshake.
    ///
    /// # Errors
    /// `WouldBlock`: it waits for the client.
    pub(super) fn handshake(&mut self) -> io::Result<()> {
        self.flush()?;
        if self.tls.is_handshaking() {
            self.read_records()?;
        }
        // Also what is to be said about a certificate that is not believed.
        self.flush()
    }

    pub(super) fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            self.read_records()?;
        }
    }

    fn read_records(&mut self) -> io::Result<()> {
        if self.tls.read_tls(&mut self.socket)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = self.tls.process_new_packets() {
            let _ = self.flush();
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(())
    }

    pub(super) fn send(&mut self, parts: &[SharedBytes]) -> io::Result<usize> {
        let mut taken = 0;
        for part in parts {
            let mut at = 0;
            while at < part.len() {
                let n = PLAIN.min(part.len() - at);
                // SAFETY: the scratch buffer has PLAIN bytes.
                unsafe { part.copy_out(at, self.scratch.as_mut_ptr(), n) };
                let written = self.tls.writer().write(&self.scratch[..n])?;
                (at, taken) = (at + written, taken + written);
                if written < n {
                    self.flush_some()?;
                    return full(taken);
                }
            }
        }
        self.flush_some()?;
        full(taken).or_else(|error| parts.is_empty().then_some(0).ok_or(error))
    }

    pub(super) fn holds_back(&self) -> bool {
        self.tls.wants_write()
    }

    pub(super) fn end(&mut self) {
        self.tls.send_close_notify();
        let _ = self.flush();
    }

    fn flush_some(&mut self) -> io::Result<()> {
        match self.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

fn full(taken: usize) -> io::Result<usize> {
    match taken {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        taken => Ok(taken),
    }
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
