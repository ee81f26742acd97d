//! The plugin, talked to by a runtime that may be out of its mind.

use tokio::net::UnixListener;

use super::messages::{
    Container, CreateContainer, CreateContainerResponse, Mount, PLUGIN, Status, Synchronize,
};
use super::*;

const LIBRARY: &str = "/opt/memlane/$LIB/libmemlane_preload.so";
/// How long something may take that takes milliseconds.
const LIMIT: Duration = Duration::from_secs(20);

/// A runtime, and the plugin that is to find it.
struct Runtime {
    folder: PathBuf,
    listener: UnixListener,
    metrics: Arc<Metrics>,
    plugin: tokio::task::JoinHandle<()>,
    known: Known,
}

impl Runtime {
    fn start(label: &str) -> Runtime {
        let folder =
            std::env::temp_dir().join(format!("memlane-nri-{label}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let socket = folder.join("nri.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("a socket");
        let metrics = Arc::new(Metrics::default());
        let nri = Nri::new(&socket, Arc::clone(&metrics));
        let known = nri.known();
        Runtime {
            folder,
            listener,
            metrics,
            plugin: tokio::spawn(nri.serve()),
            known,
        }
    }

    /// The next connection of the plugin's, which registers itself.
    async fn accept(&mut self) -> Connection {
        let accepted = timeout(LIMIT, self.listener.accept())
            .await
            .expect("in time");
        let mut connection = Connection {
            stream: accepted.expect("a connection").0,
            frames: Frames::default(),
            calls: 0,
        };
        let frame = connection.next().await;
        assert_eq!((frame.line, frame.call), (Line::ToRuntime, REGISTRATION));
        let request = Request::decode(frame.payload.as_slice()).expect("a call");
        assert_eq!(request.method, "RegisterPlugin");
        let plugin = RegisterPlugin::decode(request.payload.as_slice()).expect("a plugin");
        assert_eq!(
            (plugin.name.as_str(), plugin.index.as_str()),
            ("memlane", "99")
        );
        connection
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.plugin.abort();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Connection {
    stream: UnixStream,
    frames: Frames,
    calls: u32,
}

impl Connection {
    async fn next(&mut self) -> Frame {
        loop {
            let mut bytes = [0; 1024];
            let read = timeout(LIMIT, self.stream.read(&mut bytes)).await;
            let read = read.expect("in time").expect("read");
            assert_ne!(read, 0, "the plugin has closed the connection");
            // One answer at a time is waited for.
            if let Some(frame) = self.frames.read(&bytes[..read]).expect("frames").pop() {
                return frame;
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("written");
    }

    /// Says how the registration went.
    async fn register(&mut self, status: Option<Status>) {
        let response = Response {
            status,
            payload: Vec::new(),
        };
        let frame = Frame {
            line: Line::ToRuntime,
            call: REGISTRATION,
            kind: RESPONSE,
            flags: 0,
            payload: response.encode_to_vec(),
        };
        self.send(&frame.bytes()).await;
    }

    /// Calls the plugin, as ttrpc numbers calls.
    async fn call(&mut self, method: &str, payload: Vec<u8>) -> Response {
        let request = Request {
            service: PLUGIN.to_owned(),
            method: method.to_owned(),
            payload,
        };
        self.calls += 2;
        let frame = Frame {
            line: Line::ToPlugin,
            call: self.calls - 1,
            kind: REQUEST,
            flags: ALL_SENT,
            payload: request.encode_to_vec(),
        };
        self.send(&frame.bytes()).await;
        let answer = self.next().await;
        assert_eq!((answer.line, answer.call), (Line::ToPlugin, frame.call));
        assert_eq!(answer.kind, RESPONSE);
        Response::decode(answer.payload.as_slice()).expect("a response")
    }

    /// Lets the plugin in.
    async fn let_in(&mut self) {
        self.register(None).await;
        self.call("Configure", Vec::new()).await;
        let all = Synchronize { more: false };
        self.call("Synchronize", all.encode_to_vec()).await;
    }

    /// What is preloaded in a container with a lane and this variable.
    async fn create(&mut self, variable: &str) -> String {
        let asked = format!("MEMLANE_PRELOAD={LIBRARY}");
        let container = Container {
            env: vec![variable.to_owned(), asked],
            mounts: vec![Mount {
                destination: "/opt/memlane".to_owned(),
            }],
        };
        let container = CreateContainer {
            container: Some(container),
        };
        let said = self
            .call("CreateContainer", container.encode_to_vec())
            .await;
        let said = CreateContainerResponse::decode(said.payload.as_slice()).expect("a response");
        said.adjust.expect("an adjustment").env[1].value.clone()
    }

    /// Waits until the plugin has enough of it.
    async fn wait_until_closed(mut self) {
        let mut rest = Vec::new();
        let read = timeout(LIMIT, self.stream.read_to_end(&mut rest)).await;
        // An end, or the reset of a socket that was closed with bytes unread.
        let _ = read.expect("in time");
    }
}

#[tokio::test]
async fn a_container_is_asked_about_and_gets_the_library_after_its_own() {
    let mut runtime = Runtime::start("asked");
    let mut connection = runtime.accept().await;
    connection.let_in().await;
    runtime.known.decided(LIMIT).await;
    let set = connection.create("LD_PRELOAD=/usr/lib/libown.so").await;
    assert_eq!(set, format!("/usr/lib/libown.so:{LIBRARY}"));
    let long = "x".repeat(100_000);
    let set = connection.create(&format!("LD_PRELOAD={long}")).await;
    assert_eq!(set, format!("{long}:{LIBRARY}"));
    let page = runtime.metrics.page();
    for line in [
        "memlane_csi_runtime_knows_plugin 1",
        "memlane_csi_containers_total{outcome=\"preloaded\"} 2",
    ] {
        assert!(page.contains(line), "{page}");
    }
}

#[tokio::test]
async fn a_runtime_that_was_restarted_is_found_again() {
    let mut runtime = Runtime::start("again");
    let mut first = runtime.accept().await;
    first.let_in().await;
    drop(first);
    let mut second = runtime.accept().await;
    second.let_in().await;
    assert_eq!(second.create("PATH=/bin").await, LIBRARY);
}

#[tokio::test]
async fn after_nonsense_there_is_a_new_connection() {
    let frame = |line, kind, payload: &[u8]| Frame {
        line,
        call: 1,
        kind,
        flags: 0,
        payload: payload.to_vec(),
    };
    let nonsense = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        vec![0xff; 64],
        frame(Line::ToPlugin, 3, b"").bytes(),
        frame(Line::ToPlugin, REQUEST, b"\xff\xff").bytes(),
        frame(Line::ToRuntime, RESPONSE, b"\xff\xff").bytes(),
        frame(Line::ToRuntime, REQUEST, b"").bytes(),
    ];
    for (n, bytes) in nonsense.into_iter().enumerate() {
        let mut runtime = Runtime::start(&format!("nonsense-{n}"));
        let mut connection = runtime.accept().await;
        connection.send(&bytes).await;
        connection.wait_until_closed().await;
        let mut connection = runtime.accept().await;
        connection.let_in().await;
        assert_eq!(connection.create("A=b").await, LIBRARY, "{n}");
    }
}

#[tokio::test]
async fn a_runtime_that_refuses_the_plugin_is_asked_again_later() {
    let mut runtime = Runtime::start("refused");
    let mut connection = runtime.accept().await;
    let status = Status {
        code: 2,
        message: "no\nplugins".to_owned(),
    };
    connection.register(Some(status)).await;
    connection.wait_until_closed().await;
    assert!(
        runtime
            .metrics
            .page()
            .contains("memlane_csi_runtime_knows_plugin 0")
    );
    runtime.accept().await.let_in().await;
}

#[tokio::test]
async fn a_pod_waits_while_the_plugin_connects_but_not_where_there_is_no_runtime() {
    let waited = async |known: &Known| {
        let begin = Instant::now();
        known.decided(LIMIT).await;
        begin.elapsed()
    };
    let absent = Nri::new(Path::new("/nowhere/nri.sock"), Arc::new(Metrics::default()));
    let known = absent.known();
    let plugin = tokio::spawn(absent.serve());
    assert!(waited(&known).await < LIMIT);
    plugin.abort();

    let mut runtime = Runtime::start("waits");
    let mut connection = runtime.accept().await;
    connection.let_in().await;
    assert!(waited(&runtime.known).await < LIMIT);
    // The runtime is restarted.
    let known = runtime.known.clone();
    drop(connection);
    let mut connection = runtime.accept().await;
    let still = timeout(Duration::from_millis(100), known.decided(LIMIT)).await;
    assert!(still.is_err(), "it knows nobody yet");
    connection.let_in().await;
    assert!(waited(&known).await < LIMIT);
}
