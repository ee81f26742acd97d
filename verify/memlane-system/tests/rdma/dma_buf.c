/* An RDMA device that reaches dma-bufs, made of one that does not: takes the place of libibverbs.so.1, has this function of its own, and
 * the rest from the real one, which it is linked with by its path. What it is given must be a file whose pages can be pinned: a
 * memfd, which the test's CUDA exports. */
#include <infiniband/verbs.h>
#include <sys/mman.h>

#undef ibv_reg_mr_iova

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *, void *, size_t, uint64_t, int);

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    void *there = mmap(0, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    return there == MAP_FAILED ? 0 : ibv_reg_mr_iova(pd, there, length, iova, access);
}
