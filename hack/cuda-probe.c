// Prints the UUIDs of the GPUs that CUDA shows, having found libcuda.so.1 as any
// program does. For containers that have a C library and nothing else.
#include <dlfcn.h>
#include <stdio.h>

static void *cuda;

static int call(const char *name, void *a, long b) {
	int (*function)(void *, long) = (int (*)(void *, long))dlsym(cuda, name);
	int status = function ? function(a, b) : -1;
	if (status != 0)
		printf("%s: %d\n", name, status);
	return status;
}

int main(void) {
	int count = 0, device = 0;
	unsigned char uuid[16];
	if (!(cuda = dlopen("libcuda.so.1", RTLD_NOW))) {
		printf("%s\n", dlerror());
		return 1;
	}
	if (call("cuInit", NULL, 0) || call("cuDeviceGetCount", &count, 0))
		return 1;
	for (int i = 0; i < count; i++) {
		if (call("cuDeviceGet", &device, i) || call("cuDeviceGetUuid", uuid, device))
			return 1;
		printf("GPU-");
		for (int n = 0; n < 16; n++)
			printf(n == 4 || n == 6 || n == 8 || n == 10 ? "-%02x" : "%02x", uuid[n]);
		printf("\n");
	}
	return 0;
}
