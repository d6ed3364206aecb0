/*
 * A libnvidia-ml.so.1 whose answers stand in a text file, so that the real pynvml can be run
 * where there is no GPU. The file is named by UNBROKEN_NVML_STUB and read again on each call:
 *
 *     driver = 575.57.08
 *     gpus = 2
 *     gpu0.uuid = GPU-00000000-0000-0000-0000-000000000000
 *     gpu0.serial = 1650000000001
 *     gpu0.pci = 00000000:1B:00.0
 *     gpu0.name = NVIDIA Stub
 *     gpu0.temperature = 45
 *     gpu0.threshold.slowdown = 90          (also shutdown, gpu_max, mem_max)
 *     gpu0.error.nvmlDeviceGetTemperature = 15
 *     gpu0.hang = nvmlDeviceGetTemperature
 *     error.nvmlInitWithFlags = 9
 *     hang = nvmlDeviceGetCount_v2
 *
 * What is absent from the file is not supported. It judges nothing and remembers nothing.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9
#define UNKNOWN 999

#define VALUE_SIZE 256
#define EXPORT __attribute__((visibility("default")))

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

static int initialized;

/* Copies the value of `key` into `value`; 0 when the file or the key is absent. */
static int lookup(const char *key, char *value)
{
    const char *path = getenv("UNBROKEN_NVML_STUB");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[2 * VALUE_SIZE];
    int found = 0;

    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL) {
        char *equals = strchr(line, '=');
        char *end;
        if (equals == NULL)
            continue;
        for (end = equals; end > line && (end[-1] == ' ' || end[-1] == '\t'); end--)
            ;
        if ((size_t)(end - line) != strlen(key) || strncmp(line, key, end - line) != 0)
            continue;
        equals++;
        equals += strspn(equals, " \t");
        equals[strcspn(equals, "\r\n")] = '\0';
        snprintf(value, VALUE_SIZE, "%s", equals);
        found = 1;
    }
    fclose(file);
    return found;
}

static int number(const char *key, int *value)
{
    char text[VALUE_SIZE];
    if (!lookup(key, text))
        return 0;
    *value = atoi(text);
    return 1;
}

/* The scripted hang or error of `function`, for one GPU (index >= 0) or for the library (-1). */
static nvmlReturn_t scripted(const char *function, int index)
{
    char key[VALUE_SIZE], value[VALUE_SIZE], prefix[32] = "";
    int code;

    if (index >= 0)
        snprintf(prefix, sizeof prefix, "gpu%d.", index);
    snprintf(key, sizeof key, "%shang", prefix);
    while (lookup(key, value) && strcmp(value, function) == 0)
        usleep(50 * 1000); /* for ever: as long as the file says so */
    snprintf(key, sizeof key, "%serror.%s", prefix, function);
    return number(key, &code) ? code : SUCCESS;
}

static int index_of(nvmlDevice_t device)
{
    return (int)(intptr_t)device - 1;
}

static nvmlReturn_t enter(const char *function, int index)
{
    if (!initialized)
        return UNINITIALIZED;
    return scripted(function, index);
}

static nvmlReturn_t gpu_text(const char *function, nvmlDevice_t device, const char *field,
                             char *out, unsigned int size)
{
    char key[VALUE_SIZE], value[VALUE_SIZE];
    nvmlReturn_t code = enter(function, index_of(device));

    if (code != SUCCESS)
        return code;
    snprintf(key, sizeof key, "gpu%d.%s", index_of(device), field);
    if (!lookup(key, value))
        return NOT_SUPPORTED;
    if (strlen(value) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

static nvmlReturn_t gpu_number(const char *function, nvmlDevice_t device, const char *field,
                               unsigned int *out)
{
    char key[VALUE_SIZE];
    int value;
    nvmlReturn_t code = enter(function, index_of(device));

    if (code != SUCCESS)
        return code;
    snprintf(key, sizeof key, "gpu%d.%s", index_of(device), field);
    if (!number(key, &value))
        return NOT_SUPPORTED;
    *out = (unsigned int)value;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    int gpus;
    nvmlReturn_t code = scripted("nvmlInitWithFlags", -1);

    (void)flags;
    if (code != SUCCESS)
        return code;
    if (!number("gpus", &gpus))
        return DRIVER_NOT_LOADED;
    initialized = 1;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    initialized = 0;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    static char text[32];
    snprintf(text, sizeof text, "scripted error %d", code);
    return text;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int size)
{
    char value[VALUE_SIZE];
    nvmlReturn_t code = enter("nvmlSystemGetDriverVersion", -1);

    if (code != SUCCESS)
        return code;
    if (!lookup("driver", value))
        return NOT_SUPPORTED;
    if (strlen(value) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    int gpus;
    nvmlReturn_t code = enter("nvmlDeviceGetCount_v2", -1);

    if (code != SUCCESS)
        return code;
    if (!number("gpus", &gpus))
        return UNKNOWN;
    *count = (unsigned int)gpus;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    int gpus;
    nvmlReturn_t code = enter("nvmlDeviceGetHandleByIndex_v2", (int)index);

    if (code != SUCCESS)
        return code;
    if (!number("gpus", &gpus) || (int)index >= gpus)
        return INVALID_ARGUMENT;
    *device = (nvmlDevice_t)(intptr_t)(index + 1);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned int size)
{
    return gpu_text("nvmlDeviceGetUUID", device, "uuid", out, size);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned int size)
{
    return gpu_text("nvmlDeviceGetSerial", device, "serial", out, size);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned int size)
{
    return gpu_text("nvmlDeviceGetName", device, "name", out, size);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    char value[VALUE_SIZE];
    nvmlReturn_t code =
        gpu_text("nvmlDeviceGetPciInfo_v3", device, "pci", value, sizeof out->busId);

    if (code != SUCCESS)
        return code;
    memset(out, 0, sizeof *out);
    strcpy(out->busId, value);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%.15s", value);
    sscanf(value, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *out)
{
    if (sensor != 0)
        return INVALID_ARGUMENT;
    return gpu_number("nvmlDeviceGetTemperature", device, "temperature", out);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int kind,
                                                      unsigned int *out)
{
    static const char *const fields[] = {"threshold.shutdown", "threshold.slowdown",
                                         "threshold.mem_max", "threshold.gpu_max"};
    if (kind < 0 || kind > 3)
        return NOT_SUPPORTED;
    return gpu_number("nvmlDeviceGetTemperatureThreshold", device, fields[kind], out);
}

/* Present in every driver, not scripted here: the caller must live with "not supported". */
#define UNSUPPORTED(name) \
    EXPORT nvmlReturn_t name(void) { return initialized ? NOT_SUPPORTED : UNINITIALIZED; }

UNSUPPORTED(nvmlSystemGetNVMLVersion)
UNSUPPORTED(nvmlSystemGetCudaDriverVersion_v2)
UNSUPPORTED(nvmlDeviceGetHandleByPciBusId_v2)
UNSUPPORTED(nvmlDeviceGetTemperatureV)
UNSUPPORTED(nvmlDeviceGetMarginTemperature)
UNSUPPORTED(nvmlDeviceGetMemoryInfo)
UNSUPPORTED(nvmlDeviceGetMemoryInfo_v2)
UNSUPPORTED(nvmlDeviceGetUtilizationRates)
UNSUPPORTED(nvmlDeviceGetPowerUsage)
UNSUPPORTED(nvmlDeviceGetCurrentClocksEventReasons)
UNSUPPORTED(nvmlDeviceGetClockInfo)
UNSUPPORTED(nvmlDeviceGetTotalEccErrors)
UNSUPPORTED(nvmlDeviceGetRemappedRows)
UNSUPPORTED(nvmlDeviceGetFieldValues)
UNSUPPORTED(nvmlDeviceGetNvLinkState)
UNSUPPORTED(nvmlDeviceGetMigMode)
UNSUPPORTED(nvmlDeviceGetModuleId)
