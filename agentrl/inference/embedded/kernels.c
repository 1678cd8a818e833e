/* What a decoding step does besides matrix products, in float32 for CPUs. See native_ops.py.
 *
 * Tensors are contiguous unless a stride is given. A request's numbers depend on nothing but its own tokens: every row
 * is computed by one thread in a fixed order.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 128
#define MAX_GROUP 16
#define MAX_DIM 256
#define SMALL 65536

/* exp for |x| < 88 to about one unit in the last place; smaller x give the smallest normal numbers instead of 0. */
static inline float exp_(float x) {
    x = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    float whole = floorf(x * 1.44269504f + 0.5f);
    float r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = ((int32_t)whole + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return p * scale;
}

/* Weight of a logit relative to the highest one; exactly 0 where it is negligible, -inf included. */
static inline float weight(float x, float high, float cold) {
    float below = (x - high) * cold;
    return below < -80.0f ? 0.0f : exp_(below);
}

static inline float mass(const float *x, int64_t start, int64_t vocab, float high, float cold) {
    int64_t end = start + BLOCK < vocab ? start + BLOCK : vocab;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = start; i < end; i++) sum += weight(x[i], high, cold);
    return sum;
}

void rms_norm(const float *x, const float *weight, float *out, int64_t rows, int64_t width, float eps) {
#pragma omp parallel for if (rows * width > SMALL)
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * width;
        float *to = out + row * width, sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += from[i] * from[i];
        float factor = 1.0f / sqrtf(sum / width + eps);
#pragma omp simd
        for (int64_t i = 0; i < width; i++) to[i] = from[i] * factor * weight[i];
    }
}

void swiglu(const float *gate_up, float *out, int64_t rows, int64_t width) {
#pragma omp parallel for if (rows * width > SMALL)
    for (int64_t row = 0; row < rows; row++) {
        const float *gate = gate_up + row * 2 * width, *up = gate + width;
        float *to = out + row * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) to[i] = gate[i] / (1.0f + exp_(-gate[i])) * up[i];
    }
}

/* Rotate queries and keys in place, then store keys and values in their slots.
 * qkv (rows, heads + 2 kv, dim); rotations (positions, dim) as pairs cos, sin; keys and values (slots, kv, length, dim). */
void rotate_and_store(float *qkv, const float *rotations, const int64_t *slots, const int64_t *positions, float *keys,
                      float *values, int64_t rows, int64_t heads, int64_t kv, int64_t length, int64_t dim) {
    int64_t stride = (heads + 2 * kv) * dim;
#pragma omp parallel for if (rows * stride > SMALL)
    for (int64_t row = 0; row < rows; row++) {
        const float *turn = rotations + positions[row] * dim;
        float *head = qkv + row * stride;
        for (int64_t h = 0; h < heads + kv; h++, head += dim)
#pragma omp simd
            for (int64_t i = 0; i < dim; i += 2) {
                float a = head[i], b = head[i + 1];
                head[i] = a * turn[i] - b * turn[i + 1];
                head[i + 1] = a * turn[i + 1] + b * turn[i];
            }
        for (int64_t h = 0; h < kv; h++) {
            int64_t place = ((slots[row] * kv + h) * length + positions[row]) * dim;
            memcpy(keys + place, head + (h - kv) * dim, dim * sizeof(float));
            memcpy(values + place, head + h * dim, dim * sizeof(float));
        }
    }
}

/* Attention of `group` queries over the first `count` keys and values of one head, a block of keys at a time with a
 * running maximum (Milakov and Gimelshein, 2018). `dim` is a constant in the callers, so that loops unroll. */
static inline __attribute__((always_inline)) void attend(const float *q, const float *keys, const float *values,
                                                         float *out, int64_t count, const int group, const int dim) {
    float scores[MAX_GROUP][BLOCK], most[MAX_GROUP], total[MAX_GROUP], sum[MAX_GROUP * MAX_DIM];
    for (int g = 0; g < group; g++) most[g] = -INFINITY, total[g] = 0;
    for (int i = 0; i < group * dim; i++) sum[i] = 0;
    for (int64_t start = 0; start < count; start += BLOCK) {
        int n = count - start < BLOCK ? (int)(count - start) : BLOCK;
        const float *k = keys + start * dim, *v = values + start * dim;
        for (int t = 0; t < n; t++, k += dim)
            for (int g = 0; g < group; g++) {
                float dot = 0;
#pragma omp simd reduction(+ : dot)
                for (int i = 0; i < dim; i++) dot += q[g * dim + i] * k[i];
                scores[g][t] = dot;
            }
        for (int g = 0; g < group; g++) {
            float high = most[g], now = 0, broken = 0;
#pragma omp simd reduction(max : high)
            for (int t = 0; t < n; t++) high = scores[g][t] > high ? scores[g][t] : high;
#pragma omp simd reduction(+ : now, broken)
            for (int t = 0; t < n; t++) {
                broken += scores[g][t] * 0.0f; /* NaN where a score is NaN or inf: exp_ would hide it */
                now += scores[g][t] = exp_(scores[g][t] - high);
            }
            float shrink = start ? exp_(most[g] - high) : 0.0f;
            total[g] = total[g] * shrink + now + broken;
            most[g] = high;
            for (int i = 0; i < dim; i++) sum[g * dim + i] *= shrink;
        }
        for (int t = 0; t < n; t++, v += dim)
            for (int g = 0; g < group; g++) {
                float p = scores[g][t];
#pragma omp simd
                for (int i = 0; i < dim; i++) sum[g * dim + i] += p * v[i];
            }
    }
    for (int g = 0; g < group; g++)
        for (int i = 0; i < dim; i++) out[g * dim + i] = sum[g * dim + i] / total[g];
}

/* Row i looks at positions 0..positions[i] of slot slots[i].
 * q (rows, stride), of which the first heads * dim count; keys and values (slots, kv, length, dim); out (rows, heads * dim). */
void attention(const float *q, const float *keys, const float *values, const int64_t *slots,
                      const int64_t *positions, float *out, int64_t rows, int64_t stride, int64_t heads, int64_t kv,
                      int64_t length, int64_t dim) {
    int group = (int)(heads / kv);
#pragma omp parallel for collapse(2) schedule(dynamic, 2)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t h = 0; h < kv; h++) {
            int64_t place = (slots[row] * kv + h) * length * dim, count = positions[row] + 1;
            const float *from = q + row * stride + h * group * dim;
            float *to = out + (row * heads + h * group) * dim;
#define CASE(G, D) if (group == G && dim == D) attend(from, keys + place, values + place, to, count, G, D); else
            CASE(2, 32) CASE(3, 64) CASE(7, 64) CASE(4, 64) CASE(2, 128) CASE(4, 128)
            attend(from, keys + place, values + place, to, count, group, (int)dim);
        }
}

/* Sample one token per row of logits (rows, vocab), or take the likeliest where `greedy`; its log-prob at the row's
 * temperature. The running sum is walked in blocks, so that a row is read two and a half times whatever its width. */
void sample(const float *logits, const float *temperature, const uint8_t *greedy, const float *u, int64_t *ids,
            float *log_probs, int64_t rows, int64_t vocab) {
#pragma omp parallel for if (rows * vocab > SMALL)
    for (int64_t row = 0; row < rows; row++) {
        const float *x = logits + row * vocab, cold = 1.0f / temperature[row];
        float high = -INFINITY, broken = 0;
#pragma omp simd reduction(max : high) reduction(+ : broken)
        for (int64_t i = 0; i < vocab; i++) {
            high = x[i] > high ? x[i] : high;
            broken += x[i] < 0 ? 0.0f : x[i] * 0.0f; /* NaN where a logit is NaN or +inf; -inf only means "never" */
        }
        double total = 0;
        for (int64_t start = 0; start < vocab; start += BLOCK) total += mass(x, start, vocab, high, cold);
        int64_t picked = 0;
        if (greedy[row]) {
            while (picked < vocab - 1 && x[picked] != high) picked++;
        } else {
            double target = u[row] * total, before = 0;
            int64_t start = 0;
            for (; start + BLOCK < vocab; start += BLOCK) {
                double more = mass(x, start, vocab, high, cold);
                if (before + more > target) break;
                before += more;
            }
            int64_t i = start;
            for (picked = start; i < vocab; i++) {
                float p = weight(x[i], high, cold);
                if (p > 0) picked = i;
                if ((before += p) > target) break;
            }
        }
        ids[row] = picked;
        log_probs[row] = (x[picked] - high) * cold - (float)log(total) + broken;
    }
}
