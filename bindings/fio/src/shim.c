/*
 * The half of the engine that must know fio's structures: it is compiled
 * against fio's own headers and holds nothing but the way between them and
 * the Rust half (src/lib.rs).
 */
#define _GNU_SOURCE
#ifdef MEMLANE_FIO_CONFIGURED
#include "config-host.h"
#else
/*
 * Sources that nobody has configured. None of these changes a structure that
 * is used here; they keep fio's headers from defining what libc has.
 */
#define CONFIG_64BIT 1
#define CONFIG_LITTLE_ENDIAN 1
#define CONFIG_CLOCK_GETTIME 1
#define CONFIG_SOCKLEN_T 1
#define CONFIG_HAVE_GETTID 1
#define CONFIG_HAVE_BOOL 1
#define CONFIG_STATIC_ASSERT 1
#define CONFIG_STRSEP 1
#define CONFIG_3ARG_AFFINITY 1
#define CONFIG_PWRITEV2 1
#define CONFIG_SYNC_FILE_RANGE 1
#endif
#include "fio.h"
#include "optgroup.h"

/* ---- the Rust half: see src/lib.rs ---- */

struct memlane_settings {
	const char *address;
	const char *volume;
	const char *session;
	const char *tls;
	const char *tls_name;
	unsigned int access;
	unsigned int policy;
	unsigned int connections;
	unsigned int timeout;
};

struct memlane_shape {
	uint64_t size;
	uint32_t block;
	uint32_t read_only;
	uint32_t trim;
	uint32_t zeroes;
};

struct memlane_event {
	uint32_t index;
	int32_t error;
	void *buffer;
};

enum memlane_op { OP_READ, OP_WRITE, OP_FLUSH, OP_TRIM, OP_ZEROES };
enum { FLAG_DURABLE = 1 };
enum { BUSY = 1 };

void *memlane_fio_attach(const struct memlane_settings *, char *why, size_t len);
void memlane_fio_shape(const void *attached, struct memlane_shape *);
void memlane_fio_detach(void *attached);
void *memlane_fio_start(const void *attached, uint32_t depth, char *why, size_t len);
void *memlane_fio_buffers(void *engine, size_t len);
void *memlane_fio_hold(void *engine, uint32_t index, void *buffer, size_t len);
int memlane_fio_queue(void *engine, uint32_t index, uint32_t op, uint32_t flags,
		      uint64_t at, uint64_t len, void *buffer);
void memlane_fio_push(void *engine);
uint32_t memlane_fio_wait(void *engine, uint32_t min, uint32_t max,
			  const struct timespec *limit);
bool memlane_fio_event(const void *engine, uint32_t number, struct memlane_event *);
void memlane_fio_stop(void *engine);

/* ---- options ---- */

struct options {
	/* An option at offset 0 would count as one without a place. */
	void *unused;
	char *address;
	char *volume;
	char *session;
	char *tls;
	char *tls_name;
	unsigned int access;
	unsigned int policy;
	unsigned int connections;
	unsigned int timeout;
	unsigned int zero_trim;
};

#define PLACE(field) .off1 = offsetof(struct options, field), \
	.category = FIO_OPT_C_ENGINE, .group = FIO_OPT_G_INVALID

static struct fio_option option_list[] = {
	{
		.name = "address", .lname = "server's addresses", PLACE(address),
		.type = FIO_OPT_STR_STORE,
		.help = "local[:NAME] or tcp://HOST[:PORT]; one path for each, separated by commas",
	},
	{
		.name = "volume", .lname = "volume", PLACE(volume),
		.type = FIO_OPT_STR_STORE,
		.help = "The volume's name at the server",
	},
	{
		.name = "session", .lname = "session name", PLACE(session),
		.type = FIO_OPT_STR_STORE, .def = "fio",
		.help = "The session's name, which a server may choose volumes by",
	},
	{
		.name = "tls", .lname = "folder of certificates", PLACE(tls),
		.type = FIO_OPT_STR_STORE,
		.help = "Encrypt paths over TCP; the folder has client-cert.pem, client-key.pem, ca-cert.pem",
	},
	{
		.name = "tls_name", .lname = "server's name", PLACE(tls_name),
		.type = FIO_OPT_STR_STORE,
		.help = "The name that the server's certificate must have, if not the address",
	},
	{
		.name = "access", .lname = "access", PLACE(access),
		.type = FIO_OPT_STR, .def = "rw",
		.help = "How the volume is opened, once for all jobs",
		.posval = {
			{ .ival = "rw", .oval = 0, .help = "As its one writer" },
			{ .ival = "ro", .oval = 1, .help = "Only to read" },
			{ .ival = "migration", .oval = 2, .help = "As one of two writers" },
		},
	},
	{
		.name = "policy", .lname = "path policy", PLACE(policy),
		.type = FIO_OPT_STR, .def = "min-inflight",
		.help = "Which path takes a request",
		.posval = {
			{ .ival = "min-inflight", .oval = 0, .help = "The one with the fewest" },
			{ .ival = "round-robin", .oval = 1, .help = "One after the other" },
			{ .ival = "min-latency", .oval = 2, .help = "The fastest of late" },
		},
	},
	{
		.name = "connections", .lname = "connections per path", PLACE(connections),
		.type = FIO_OPT_INT, .def = "1", .minval = 1, .maxval = 256,
		.help = "Connections for requests, of each path; all jobs share them",
	},
	{
		.name = "open_timeout", .lname = "limit for opening", PLACE(timeout),
		.type = FIO_OPT_INT, .def = "10", .minval = 1, .maxval = 3600,
		.help = "Seconds in which the volume must be open",
	},
	{
		.name = "zero_trim", .lname = "trims write zeroes", PLACE(zero_trim),
		.type = FIO_OPT_BOOL, .def = "0",
		.help = "What fio calls a trim becomes a write-zeroes",
	},
	{ .name = NULL },
};

/* ---- the engine ---- */

static struct ioengine_ops engine;

/* A job's: from setup to cleanup, and from init on with an engine. */
struct job {
	void *attached;
	void *engine;
	/* Taken, and not known to be sent. */
	struct io_u **taken;
	unsigned int taken_nr;
};

#define complain(...) log_err("fio: memlane: " __VA_ARGS__)

static int fails(struct thread_data *td, int error)
{
	td->error = error;
	return 1;
}

static struct memlane_settings settings_of(const struct options *o)
{
	return (struct memlane_settings) {
		.address = o->address,
		.volume = o->volume,
		.session = o->session,
		.tls = o->tls,
		.tls_name = o->tls_name,
		.access = o->access,
		.policy = o->policy,
		.connections = o->connections,
		.timeout = o->timeout,
	};
}

/* Can the volume do what the job wants? */
static bool suits(struct thread_data *td, const struct memlane_shape *shape)
{
	const struct options *o = td->eo;

	if (shape->read_only && (td_write(td) || td_trim(td))) {
		complain("volume %s can only be read\n", o->volume);
		return false;
	}
	/* fio would refuse it later, and crash. */
	if (fio_option_is_set(&td->o, mem_type)) {
		complain("iomem can't be set: buffers are memory that the session knows\n");
		return false;
	}
	if (td_trim(td) && !(o->zero_trim ? shape->zeroes : shape->trim)) {
		complain("volume %s can't %s\n", o->volume, o->zero_trim ? "write zeroes" : "trim");
		return false;
	}
	for_each_rw_ddir(ddir) {
		unsigned long long bs = td->o.min_bs[ddir];

		if ((td->o.td_ddir & (1 << ddir)) && bs % shape->block) {
			complain("volume %s has blocks of %u bytes, which bs=%llu is no multiple of\n",
				 o->volume, shape->block, bs);
			return false;
		}
	}
	return true;
}

static int memlane_setup(struct thread_data *td)
{
	struct memlane_settings settings;
	struct memlane_shape shape;
	char why[512] = "";
	struct job *job;

	/* Offsets of this build against those of the fio that runs. */
	if (td->io_ops != &engine || !td->eo) {
		complain("built with the headers of another fio; build it again\n");
		return 1;
	}
	if (!td->o.use_thread) {
		complain("its jobs must be threads: add --thread (thread=1)\n");
		return fails(td, EINVAL);
	}
	settings = settings_of(td->eo);
	job = calloc(1, sizeof(*job));
	if (!job)
		return fails(td, ENOMEM);
	job->attached = memlane_fio_attach(&settings, why, sizeof(why));
	if (!job->attached) {
		complain("%s\n", why);
		free(job);
		return fails(td, EIO);
	}
	memlane_fio_shape(job->attached, &shape);
	if (!suits(td, &shape)) {
		memlane_fio_detach(job->attached);
		free(job);
		return fails(td, EINVAL);
	}
	td->io_ops_data = job;
	/* fio wants a file; the volume stands for it, whatever its name. */
	if (!td->files_index) {
		add_file(td, "memlane", 0, 0);
		if (!td->o.nr_files)
			td->o.nr_files = 1;
		td->o.open_files++;
	}
	td->files[0]->real_file_size = shape.size;
	return 0;
}

static int memlane_get_file_size(struct thread_data *td, struct fio_file *f)
{
	struct job *job = td->io_ops_data;
	struct memlane_shape shape;

	if (!job)
		return 1;
	memlane_fio_shape(job->attached, &shape);
	f->real_file_size = shape.size;
	fio_file_set_size_known(f);
	return 0;
}

static int memlane_init(struct thread_data *td)
{
	struct job *job = td->io_ops_data;
	char why[512] = "";

	job->taken = calloc(td->o.iodepth, sizeof(*job->taken));
	if (!job->taken)
		return ENOMEM;
	job->engine = memlane_fio_start(job->attached, td->o.iodepth, why, sizeof(why));
	if (!job->engine) {
		complain("%s\n", why);
		return EIO;
	}
	return 0;
}

/* All buffers of a job; they go with its engine. */
static int memlane_iomem_alloc(struct thread_data *td, size_t len)
{
	struct job *job = td->io_ops_data;

	td->orig_buffer = memlane_fio_buffers(job->engine, len);
	return td->orig_buffer ? 0 : ENOMEM;
}

/* Buffers are where the session can move them from without a copy, as far as it has memory. */
static int memlane_post_init(struct thread_data *td)
{
	struct job *job = td->io_ops_data;
	struct io_u *io_u;
	unsigned int i;

	io_u_qiter(&td->io_u_all, io_u, i) {
		if (io_u->buf)
			io_u->buf = memlane_fio_hold(job->engine, i, io_u->buf, td_max_bs(td));
	}
	return 0;
}

static bool op_of(const struct thread_data *td, const struct io_u *io_u, enum memlane_op *op)
{
	const struct options *o = td->eo;

	switch (io_u->ddir) {
	case DDIR_READ:
		*op = OP_READ;
		return true;
	case DDIR_WRITE:
		*op = OP_WRITE;
		return true;
	case DDIR_SYNC:
	case DDIR_DATASYNC:
		*op = OP_FLUSH;
		return true;
	case DDIR_TRIM:
		*op = o->zero_trim ? OP_ZEROES : OP_TRIM;
		return true;
	default:
		return false;
	}
}

static enum fio_q_status memlane_queue(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = td->io_ops_data;
	enum memlane_op op;
	int ret = -EOPNOTSUPP;

	io_u->error = 0;
	if (op_of(td, io_u, &op))
		ret = memlane_fio_queue(job->engine, io_u->index, op,
					td->o.sync_io ? FLAG_DURABLE : 0,
					io_u->offset, io_u->xfer_buflen, io_u->xfer_buf);
	if (ret == 0) {
		/* No more than iodepth: each is one of td->io_u_all. */
		job->taken[job->taken_nr++] = io_u;
		return FIO_Q_QUEUED;
	}
	if (ret == BUSY)
		return FIO_Q_BUSY;
	io_u->error = -ret;
	return FIO_Q_COMPLETED;
}

/* The times up to here are what submitting took: slat. */
static void account(struct thread_data *td, const struct job *job)
{
	struct timespec now;
	unsigned int i;

	fio_gettime(&now, NULL);
	for (i = 0; i < job->taken_nr; i++) {
		job->taken[i]->issue_time = now;
		io_u_queued(td, job->taken[i]);
	}
	if (td->o.read_iolog_file)
		td->last_issue = now;
}

static int memlane_commit(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (!job->taken_nr)
		return 0;
	memlane_fio_push(job->engine);
	if (fio_fill_issue_time(td))
		account(td, job);
	io_u_mark_submit(td, job->taken_nr);
	job->taken_nr = 0;
	return 0;
}

static int memlane_getevents(struct thread_data *td, unsigned int min, unsigned int max,
			     const struct timespec *limit)
{
	struct job *job = td->io_ops_data;

	/* Nothing that was taken may be done before its time was. */
	memlane_commit(td);
	return memlane_fio_wait(job->engine, min, max, limit);
}

static struct io_u *memlane_event(struct thread_data *td, int number)
{
	struct job *job = td->io_ops_data;
	struct memlane_event event;
	struct io_u *io_u;

	if (!memlane_fio_event(job->engine, number, &event))
		return NULL;
	io_u = td->io_u_all.io_us[event.index];
	io_u->error = event.error;
	if (event.buffer)
		io_u->buf = event.buffer;
	return io_u;
}

static void memlane_cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (!job)
		return;
	td->io_ops_data = NULL;
	if (job->engine)
		memlane_fio_stop(job->engine);
	memlane_fio_detach(job->attached);
	free(job->taken);
	free(job);
}

static int memlane_nothing(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static struct ioengine_ops engine = {
	.name = "memlane",
	.version = FIO_IOOPS_VERSION,
	/* Workers that fio makes for offloaded jobs have no setup. */
	.flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_NO_OFFLOAD |
		 FIO_ASYNCIO_SETS_ISSUE_TIME,
	.setup = memlane_setup,
	.init = memlane_init,
	.post_init = memlane_post_init,
	.iomem_alloc = memlane_iomem_alloc,
	.queue = memlane_queue,
	.commit = memlane_commit,
	.getevents = memlane_getevents,
	.event = memlane_event,
	.cleanup = memlane_cleanup,
	.open_file = memlane_nothing,
	.close_file = memlane_nothing,
	.invalidate = memlane_nothing,
	.get_file_size = memlane_get_file_size,
	.options = option_list,
	.option_struct_size = sizeof(struct options),
};

void *memlane_fio_engine(void)
{
	return &engine;
}
