/* Both libraries of rdma-core in one, for a device that is not there: what is asked of it is written down in variables
 * that the test reads. It makes objects, and no connection. -DWITHOUT_DMA_BUFS: as before rdma-core 34. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

static struct ibv_context device = {.num_comp_vectors = 4};

/* What was asked for last. */
uint64_t asked_offset, asked_length, asked_name;
int asked_fd, asked_access;
/* Completion vectors of all completion queues, a bit for each; and how many memory regions there are now. */
unsigned asked_vectors;
int regions;
/* If not 0: the error number of the driver. */
int refuses;

static struct ibv_mr *region(struct ibv_pd *pd, uint64_t length) {
    if (refuses) {
        errno = refuses;
        return NULL;
    }
    struct ibv_mr *mr = calloc(1, sizeof *mr);
    mr->pd = pd;
    mr->length = length;
    mr->lkey = 7;
    mr->rkey = 8;
    regions++;
    return mr;
}

#ifndef WITHOUT_DMA_BUFS
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    asked_offset = offset;
    asked_length = length;
    asked_name = iova;
    asked_fd = fd;
    asked_access = access;
    return region(pd, length);
}
#endif

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access) {
    (void)addr, (void)access;
    asked_name = iova;
    return region(pd, length);
}

int ibv_dereg_mr(struct ibv_mr *mr) {
    regions--;
    free(mr);
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
    free(pd);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    struct ibv_comp_channel *channel = calloc(1, sizeof *channel);
    channel->context = context;
    channel->fd = eventfd(0, EFD_CLOEXEC);
    return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *mine, struct ibv_comp_channel *channel, int vector) {
    (void)cqe, (void)mine, (void)channel;
    struct ibv_cq *cq = calloc(1, sizeof *cq);
    cq->context = context;
    asked_vectors |= 1u << vector;
    return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq) {
    free(cq);
    return 0;
}

struct rdma_event_channel *rdma_create_event_channel(void) {
    struct rdma_event_channel *channel = calloc(1, sizeof *channel);
    channel->fd = eventfd(0, EFD_CLOEXEC);
    return channel;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel) { free(channel); }

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *mine, enum rdma_port_space space) {
    (void)mine, (void)space;
    *id = calloc(1, sizeof **id);
    (*id)->channel = channel;
    return 0;
}

int rdma_destroy_id(struct rdma_cm_id *id) {
    free(id);
    return 0;
}

/* Every address is one of the device's. */
int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int limit) {
    (void)from, (void)to, (void)limit;
    id->verbs = &device;
    return 0;
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *settings) {
    (void)settings;
    id->qp = calloc(1, sizeof *id->qp);
    id->qp->context = pd->context;
    return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id) {
    free(id->qp);
    id->qp = NULL;
}

/* The rest is looked up, and not called. */
#define NEVER(name)                         \
    void never_##name(void) __asm__(#name); \
    void never_##name(void) { abort(); }

NEVER(ibv_ack_cq_events)
NEVER(ibv_free_device_list)
NEVER(ibv_get_cq_event)
NEVER(ibv_get_device_list)
NEVER(ibv_get_device_name)
NEVER(rdma_accept)
NEVER(rdma_ack_cm_event)
NEVER(rdma_bind_addr)
NEVER(rdma_connect)
NEVER(rdma_disconnect)
NEVER(rdma_free_devices)
NEVER(rdma_get_cm_event)
NEVER(rdma_get_devices)
NEVER(rdma_listen)
NEVER(rdma_migrate_id)
NEVER(rdma_reject)
NEVER(rdma_resolve_route)
